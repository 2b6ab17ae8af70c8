"""GPTQ and AWQ folders: codes kept, values those of the formats' definitions, errors typed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

from graphc.errors import ModelError, UnsupportedError
from graphc.frontend import load, packed_folder
from graphc.passes import pipeline
from graphc.passes.quantized_products import quantized_products
from graphc.targets import load as targets

GENERATOR = np.random.default_rng()
GROUP = 32


def words(codes: np.ndarray, shifts: list[int]) -> np.ndarray:
    """[.., 8 or so] codes of a last axis -> [..] int32, each at its place."""
    total = np.zeros(codes.shape[:-1], np.uint32)
    for position, shift in enumerate(shifts):
        total |= codes[..., position].astype(np.uint32) << np.uint32(shift)
    return total.view(np.int32)


def packed(method: str, depth: int, width: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The tensors of one layer, and the weight [N, K] that they stand for."""
    codes = GENERATOR.integers(0, 16, (depth, width))
    zeros = GENERATOR.integers(1, 16, (depth // GROUP, width))
    scales = GENERATOR.uniform(0.01, 0.1, zeros.shape).astype(np.float16)
    groups = np.arange(depth) // GROUP
    weight = (codes - zeros[groups]) * scales.astype(np.float32)[groups]
    plain, order = [4 * i for i in range(8)], [0, 16, 4, 20, 8, 24, 12, 28]
    if method == "gptq":
        tensors = {
            "qweight": words(codes.reshape(-1, 8, width).transpose(0, 2, 1), plain),
            "qzeros": words((zeros - 1).reshape(len(zeros), -1, 8), plain),
            "g_idx": groups.astype(np.int32),
        }
    else:
        tensors = {
            "qweight": words(codes.reshape(depth, -1, 8), order),
            "qzeros": words(zeros.reshape(len(zeros), -1, 8), order),
        }
    return {**tensors, "scales": scales}, weight.T.astype(np.float32)


def folder_of(path: Path, method: str, shuffled: bool = False) -> dict[str, np.ndarray]:
    """A tiny decoder whose linear layers are packed; returns their weights."""
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32,
    )  # fmt: skip
    module = transformers.LlamaForCausalLM(config)
    state, weights = {}, {}
    for name, value in module.state_dict().items():
        if value.ndim == 2 and "proj" in name:
            prefix = name.removesuffix(".weight")
            tensors, weight = packed(method, value.shape[1], value.shape[0])
            if shuffled:
                order = GENERATOR.permutation(value.shape[1])
                # Code k moves to place order[k] and takes its group with it.
                moved = np.empty_like(tensors["g_idx"])
                moved[order] = tensors["g_idx"]
                weight = scattered(tensors, moved)
                tensors["g_idx"] = moved
            state |= {f"{prefix}.{part}": torch.from_numpy(t) for part, t in tensors.items()}
            weights[name] = weight
        else:
            state[name] = value.contiguous()
    save_file(state, path / "model.safetensors")
    record = config.to_dict() | {"architectures": ["LlamaForCausalLM"]}
    record["quantization_config"] = {"quant_method": method, "bits": 4, "group_size": GROUP}
    (path / "config.json").write_text(json.dumps(record), encoding="utf-8")
    return weights


def scattered(tensors: dict[str, np.ndarray], groups: np.ndarray) -> np.ndarray:
    """The weight [N, K] of GPTQ tensors by their definition, one element at a time."""
    qweight, qzeros, scales = (tensors[n] for n in ("qweight", "qzeros", "scales"))
    depth, width = qweight.shape[0] * 8, qweight.shape[1]
    weight = np.empty((width, depth), np.float32)
    for k in range(depth):
        for n in range(width):
            code = (int(qweight[k // 8, n]) >> 4 * (k % 8)) & 15
            zero = ((int(qzeros[groups[k], n // 8]) >> 4 * (n % 8)) & 15) + 1
            weight[n, k] = (code - zero) * np.float32(scales[groups[k], n])
    return weight


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_codes_are_kept(method: str, tmp_path: Path) -> None:
    weights = folder_of(tmp_path, method)
    model = load(tmp_path)
    assert len(model.quantized) == len(weights) == 7
    for name, weight in weights.items():
        np.testing.assert_allclose(model.params[name], weight, rtol=2e-6, atol=2e-6)
    graph = pipeline.run((quantized_products,), pipeline.graph(model, targets.get("host")))
    assert graph.statistics["quantized_products"] == 7
    module, _ = packed_folder.reference(tmp_path)
    found = dict(module.named_parameters())
    for name, weight in weights.items():
        np.testing.assert_allclose(found[name].numpy(), weight, rtol=2e-6, atol=2e-6)


def test_scattered_groups_become_floats(tmp_path: Path) -> None:
    weights = folder_of(tmp_path, "gptq", shuffled=True)
    model = load(tmp_path)
    assert model.quantized == {}
    for name, weight in weights.items():
        np.testing.assert_allclose(model.params[name], weight, rtol=2e-6)


def test_folders_that_do_not_fit(tmp_path: Path) -> None:
    folder_of(tmp_path, "gptq")
    record = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    for change, error, message in (
        ({"bits": 3}, UnsupportedError, "3 bits"),
        ({"group_size": 24}, ModelError, "not groups of 24"),
    ):
        changed = {**record, "quantization_config": {**record["quantization_config"], **change}}
        (tmp_path / "config.json").write_text(json.dumps(changed), encoding="utf-8")
        with pytest.raises(error, match=message):
            load(tmp_path)
