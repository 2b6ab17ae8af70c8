"""GGUF files: weights exact and packed, the graph equal to transformers' own, companions."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import tokenizers
import torch
import transformers
from gguf_files import HALVES, Type, blocks, llama

import graphc
from graphc import text_quality, trial
from graphc.errors import ConfigError
from graphc.frontend import companions, load
from graphc.frontend.gguf.reader import read
from graphc.frontend.gguf.tensors import rearranged, weight
from graphc.llm.chunk import ALL_ROWS, Chunk
from graphc.llm.model import LanguageModel
from graphc.llm.tokenizer import Tokenizer
from graphc.passes import pipeline
from graphc.targets import load as targets


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def file_of(path: Path, kind: Type, shape: tuple[int, ...]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("w", blocks(kind, shape, 7), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind", [*HALVES, Type.F32, Type.F16, Type.BF16, Type.IQ4_NL])
def test_every_format_is_read_exactly(kind: Type, tmp_path: Path) -> None:
    path = file_of(tmp_path / "w.gguf", kind, (6, 512))
    found = weight(read(path), read(path).tensors["w"])
    expected = gguf.dequantize(gguf.GGUFReader(path).tensors[0].data, kind).reshape(6, 512)
    np.testing.assert_array_equal(found.read(), expected)
    packed = kind in HALVES and kind != Type.IQ4_NL  # its codes index a table
    assert (found.quantized is not None) == packed


def test_moved_rows_stay_packed(tmp_path: Path) -> None:
    path = file_of(tmp_path / "w.gguf", Type.Q4_1, (8, 64))
    own = weight(read(path), read(path).tensors["w"])
    moves = {
        "rows": lambda w: w.reshape(2, 2, 2, 64).swapaxes(1, 2).reshape(8, 64),
        "transposed": lambda w: w.T,
        "columns": lambda w: w[:, ::-1],
    }
    for name, move in moves.items():
        found = rearranged(own, move)
        np.testing.assert_array_equal(found.read(), move(own.read()))
        assert (found.quantized is not None) == (name != "columns")
        if found.quantized is not None:
            np.testing.assert_array_equal(found.quantized.plain(), move(own.read()))


def test_weights_and_logits_are_those_of_transformers(model: Path, tmp_path: Path) -> None:
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        model.parent, gguf_file=model.name, dtype=torch.float32
    )
    imported = load(model)
    assert len(imported.quantized) == 15
    own = {name: imported.params[name] for name in imported.quantized}
    for name, value in reference.state_dict().items():
        if name in own:
            np.testing.assert_array_equal(own[name], value.numpy(), name)
    artifact = graphc.compile(model, output=tmp_path / "tiny.gc", activations="float")
    assert artifact.manifest.numerics is not None and artifact.manifest.numerics["passed"]
    assert not any(k.template.startswith("gemm/") for k in artifact.manifest.kernels)
    ids = np.random.default_rng().integers(0, 160, 9)
    with LanguageModel.open(artifact.path) as loaded:
        found = loaded.step([Chunk(loaded.create(), ids.astype(np.int32), ALL_ROWS)]).copy()
    with torch.no_grad():
        expected = reference(input_ids=torch.from_numpy(ids)[None]).logits[0].numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())
    assert_quality(artifact.path, reference)


def assert_quality(artifact: Path, reference: torch.nn.Module) -> None:
    """Perplexity is torch's, and nothing diverges from itself."""
    text = "the cat the dog 12 and " * 4
    found = text_quality.measure(artifact, text, artifact)
    ids = torch.tensor(Tokenizer.open(artifact).encode(text)[: text_quality.WINDOW])
    windows = ids.split(64)  # the model's context
    losses = []
    with torch.no_grad():
        for window in windows:
            logits = reference(input_ids=window[None]).logits[0, :-1]
            losses.append(torch.nn.functional.cross_entropy(logits, window[1:], reduction="none"))
    expected = float(torch.cat(losses).mean().exp())
    assert found.tokens == sum(len(window) - 1 for window in windows)
    assert found.perplexity == pytest.approx(expected, rel=1e-4)
    assert found.divergence == pytest.approx(0, abs=1e-6)
    assert found.agreement == 1


def test_all_its_matrices_stay_packed(model: Path, tmp_path: Path) -> None:
    imported = load(model)
    graph = pipeline.graph(imported, targets.get("host"))
    assert graph.statistics["keep_quantized"] == 15
    # The embedding and the head tied to it are two views of one weight.
    assert len(graph.quantized) == 16
    text = tmp_path / "calibration.txt"
    text.write_text("the 12 " * 200, encoding="utf-8")
    first, *rest = trial.inputs(imported, text, model)
    assert sorted(first) == ["attention_mask", "input_ids"]
    assert first["input_ids"].shape == (1, 256) and rest
    assert (first["attention_mask"] == 1).all()
    text.write_text("the", encoding="utf-8")
    with pytest.raises(ConfigError, match="at least 256 tokens"):
        trial.inputs(imported, text, model)


def test_the_tokenizer_cuts_as_the_file_says(model: Path) -> None:
    found = companions(model)
    assert found["chat_template.jinja"] == b"{{ messages[0]['content'] }}"
    assert b'"eos_token_id": [\n  0\n ]' in found["generation_config.json"]
    tokenizer = tokenizers.Tokenizer.from_str(found["tokenizer.json"].decode())
    encoded = tokenizer.encode("the the<|end|>12\n")
    assert encoded.tokens == ["the", "Ġthe", "<|end|>", "1", "2", "Ċ"]  # digits one by one
    assert tokenizer.decode(encoded.ids) == "the the12\n"
