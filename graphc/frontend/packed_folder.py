"""Hugging Face folders with GPTQ or AWQ weights: codes are kept, nothing is quantised again.

GPTQ   qweight [K / f, N], f codes to an int32 along K; group of k: g_idx[k]
       w = (q - zero - 1) * scale                 (format "gptq_v2": q - zero)
AWQ    qweight [K, N / 8], eight codes to an int32 along N in the order 0 4 1 5 2 6 3 7
       w = (q - zero) * scale
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from graphc.errors import ModelError, UnsupportedError
from graphc.frontend import huggingface
from graphc.frontend.packed import Weight, empty, fill
from graphc.frontend.packed import load as load_packed
from graphc.ir import Model, QuantizedWeight

if TYPE_CHECKING:
    import torch

_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
_METHODS = ("gptq", "awq")


@dataclass(frozen=True)
class Packing:
    """What config.json says of the weights; `shift` is added to stored zero points."""

    method: str
    bits: int
    group: int
    shift: int


def packing_of(path: Path) -> Packing | None:
    """How the folder's weights are packed; None for a plain one, or one of another kind."""
    try:
        record = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # the plain importer says what is wrong
    found = record.get("quantization_config") if isinstance(record, dict) else None
    if not isinstance(found, dict) or found.get("quant_method") not in _METHODS:
        return None
    bits = found.get("bits", found.get("w_bit"))
    group = found.get("group_size", found.get("q_group_size"))
    if bits not in (2, 4, 8) or not isinstance(group, int) or (bits != 4 and _is_awq(found)):
        raise UnsupportedError(
            f"{path}: {found['quant_method']} weights of {bits} bits in groups of {group} are not "
            "compiled, only 2, 4 and 8 bits (AWQ: 4)"
        )
    if _is_awq(found) and found.get("version", "gemm") not in ("gemm", "GEMM"):
        raise UnsupportedError(f"{path}: AWQ weights in the layout {found['version']!r}, not gemm")
    old = not _is_awq(found) and found.get("checkpoint_format", "gptq") == "gptq"
    return Packing(str(found["quant_method"]), int(bits), int(group), int(old))


def _is_awq(record: Mapping[str, Any]) -> bool:
    return bool(record["quant_method"] == "awq")


def load(
    path: Path,
    *,
    dims: Mapping[str, int | tuple[int, int | None]] | None = None,
    outputs: Sequence[str] = (),
) -> Model:
    """Imports the folder at `path`; see `graphc.frontend.load`."""
    weights = dict(_weights(path))
    module = fill(_empty(path), weights, path, packed=True)
    return load_packed(module, weights, path, dims, outputs)


def reference(path: Path) -> tuple[torch.nn.Module, dict[str, huggingface.Input]]:
    """The module with all its weights in float32, and what it is to be called with."""
    module = fill(_empty(path), dict(_weights(path)), path, packed=False)
    return module, huggingface.inputs_of(module, path)


def _empty(path: Path) -> Any:
    library = huggingface.require_transformers(path)
    config = huggingface.config_of(library, path)
    del config.quantization_config
    config.use_cache = False
    return empty(huggingface.class_of(library, config, path), config, path)


def _weights(path: Path) -> Iterator[tuple[str, Weight]]:
    """By the names that the module's parameters have."""
    packing = packing_of(path)
    assert packing is not None, path
    tensors = _tensors(path)
    for name in tensors:
        if name.endswith(".qweight"):
            prefix = name.removesuffix(".qweight")
            yield f"{prefix}.weight", _weight(tensors, prefix, packing, path)
        elif not name.endswith((".qzeros", ".scales", ".g_idx")):
            value = tensors[name]
            yield name, Weight(tuple(value.shape), functools.partial(_float32, value))


def _tensors(path: Path) -> dict[str, Any]:
    """All tensors of the folder's safetensors files, mapped."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    found: dict[str, Any] = {}
    for file in sorted(path.glob("*.safetensors")):
        try:
            found |= load_file(file)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{file}: cannot be read: {error}") from error
    return found


def _float32(value: Any) -> np.ndarray:
    array: np.ndarray = value.float().numpy()
    return array


def _weight(tensors: Mapping[str, Any], prefix: str, packing: Packing, path: Path) -> Weight:
    """One linear layer's weight [N, K]."""
    absent = [p for p in ("qzeros", "scales") if f"{prefix}.{p}" not in tensors]
    if absent:
        raise ModelError(f"{path}: {prefix}.qweight has no {absent[0]} beside it")
    words = tensors[f"{prefix}.qweight"].numpy()
    scales = _float32(tensors[f"{prefix}.scales"])
    codes = _along_width(words) if packing.method == "awq" else _along_depth(words, packing.bits)
    depth, width = codes.shape
    group = depth if packing.group == -1 else packing.group
    zeros = _zeros(tensors[f"{prefix}.qzeros"].numpy(), packing)
    if group < 1 or depth % group or scales.shape != (depth // group, width):
        raise ModelError(
            f"{path}: {prefix} has codes {codes.shape} and scales {scales.shape}, which are not "
            f"groups of {group}"
        )
    if zeros.shape != scales.shape:
        raise ModelError(f"{path}: {prefix}.qzeros are {zeros.shape}, expected {scales.shape}")
    groups = tensors.get(f"{prefix}.g_idx")
    order = None if groups is None else groups.numpy()
    if order is not None and not np.array_equal(order, np.arange(depth) // group):
        return _reordered(codes, scales, zeros, order, prefix, path)
    middle = 1 << (packing.bits - 1)
    if (zeros == middle).all():
        signed = (codes.astype(np.int16) - middle).astype(np.int8)
        quantized = QuantizedWeight(signed, scales, None, group, packing.bits, transposed=True)
    else:
        minima = -zeros.astype(np.float32) * scales
        quantized = QuantizedWeight(codes, scales, minima, group, packing.bits, transposed=True)
    return Weight((width, depth), quantized.plain, quantized)


def _reordered(
    codes: np.ndarray,
    scales: np.ndarray,
    zeros: np.ndarray,
    order: np.ndarray,
    prefix: str,
    path: Path,
) -> Weight:
    """A weight whose groups are scattered over the depth (act-order): it is kept as floats."""
    if order.shape != (len(codes),) or order.min() < 0 or order.max() >= len(scales):
        raise ModelError(f"{path}: {prefix}.g_idx names groups that are not there")

    def read() -> np.ndarray:
        value = (codes.astype(np.float32) - zeros[order]) * scales[order]
        return np.ascontiguousarray(value.T)

    return Weight((codes.shape[1], codes.shape[0]), read)


def _along_depth(words: npt.NDArray[np.int32], bits: int) -> npt.NDArray[np.uint8]:
    """[K / f, N] -> [K, N]"""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)[None, :, None]
    codes = words.view(np.uint32)[:, None, :] >> shifts & np.uint32((1 << bits) - 1)
    return codes.astype(np.uint8).reshape(-1, words.shape[1])


def _along_width(words: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
    """[K, N / 8] -> [K, N]: code n of eight lies at the place that AWQ's order gives it."""
    shifts = np.array([4 * place for place in _AWQ_ORDER], np.uint32)
    codes = words.view(np.uint32)[:, :, None] >> shifts & np.uint32(15)
    return codes.astype(np.uint8).reshape(words.shape[0], -1)


def _zeros(words: npt.NDArray[np.int32], packing: Packing) -> npt.NDArray[np.int64]:
    """Zero points [K / group, N]."""
    if packing.method == "awq":
        return _along_width(words).astype(np.int64)
    codes = _along_depth(np.ascontiguousarray(words.T), packing.bits).T
    return codes.astype(np.int64) + packing.shift
