"""Tensors of a GGUF file as weights: packed where the format is one of scales, else float32."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np

from graphc.errors import ConfigError, ModelError, UnsupportedError
from graphc.frontend.gguf.blocks import BLOCKS, Block, split
from graphc.frontend.gguf.reader import GgufFile, Tensor
from graphc.frontend.packed import Weight
from graphc.ir import QuantizedWeight

Rearrange: TypeAlias = Callable[[np.ndarray], np.ndarray]

# ggml's numbers of the plain types.
_PLAIN: Final = {
    0: np.dtype("<f4"),
    1: np.dtype("<f2"),
    24: np.dtype("i1"),
    25: np.dtype("<i2"),
    26: np.dtype("<i4"),
    27: np.dtype("<i8"),
    28: np.dtype("<f8"),
    30: np.dtype(ml_dtypes.bfloat16),
}


def weight(file: GgufFile, tensor: Tensor) -> Weight:
    """The weight as it lies in the file; nothing is read yet."""
    block = BLOCKS.get(tensor.kind)
    if block is None:
        return Weight(tensor.shape, functools.partial(_float32, file, tensor))
    raw = _raw(file, tensor, block.elements, block.size, block.name)
    if len(tensor.shape) != 2:
        return Weight(tensor.shape, functools.partial(_expanded, block, raw, tensor.shape))
    quantized = _quantized(block, raw, tensor.shape[0])
    return Weight(tensor.shape, quantized.plain, quantized)


def rearranged(weight: Weight, how: Rearrange) -> Weight:
    """The weight after `how`, which moves elements; packed if it moves whole rows or transposes.

    What it does is found by letting it move the numbers of the elements.
    """
    probe = np.empty(weight.shape, np.int64)  # takes no memory until it is written
    if how(probe) is probe:
        return weight
    probe = np.arange(math.prod(weight.shape)).reshape(weight.shape)
    moved = how(probe)
    plain = Weight(moved.shape, lambda: np.ascontiguousarray(how(weight.read())))
    if weight.quantized is None:
        return plain
    if np.array_equal(moved, probe.T):
        quantized = weight.quantized.flipped()
        return Weight(moved.shape, quantized.plain, quantized)
    rows = moved[:, 0] // weight.shape[1] if moved.shape == weight.shape else None
    if rows is None or not np.array_equal(moved, probe[rows]):
        return plain
    quantized = _rows(weight.quantized, rows)
    return Weight(moved.shape, quantized.plain, quantized)


def _rows(quantized: QuantizedWeight, rows: np.ndarray) -> QuantizedWeight:
    """The rows of the plain weight [N, K], which are columns of the codes, in another order."""
    assert quantized.transposed

    def taken(source: Any) -> np.ndarray:
        value = source if isinstance(source, np.ndarray) else source()
        return np.ascontiguousarray(value.T[rows]).T

    minima = quantized.minima
    return replace(
        quantized,
        codes=functools.partial(taken, quantized.codes),
        scales=functools.partial(taken, quantized.scales),
        minima=None if minima is None else functools.partial(taken, minima),
    )


def _quantized(block: Block, raw: np.ndarray, rows: int) -> QuantizedWeight:
    """Codes, scales and minima of a matrix [rows, K], each taken from the file when read."""
    has_minima = block.split(np.zeros((1, block.size), np.uint8))[2] is not None

    def part(number: int) -> np.ndarray:
        value = split(block, raw, rows)[number]
        assert value is not None, (block.name, number)
        return value.T

    return QuantizedWeight(
        codes=functools.partial(part, 0),
        scales=functools.partial(part, 1),
        minima=functools.partial(part, 2) if has_minima else None,
        group=block.group,
        bits=block.bits,
        transposed=True,
    )


def _expanded(block: Block, raw: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return _quantized(block, raw, math.prod(shape[:-1])).plain().reshape(shape)


def _float32(file: GgufFile, tensor: Tensor) -> np.ndarray:
    dtype = _PLAIN.get(tensor.kind)
    if dtype is None:
        return _by_library(file, tensor)
    raw = file.raw(tensor, math.prod(tensor.shape) * dtype.itemsize)
    plain: np.ndarray = raw.view(dtype).reshape(tensor.shape).astype(np.float32)
    return plain


def _by_library(file: GgufFile, tensor: Tensor) -> np.ndarray:
    """A format that is only read as floats, by ggml's own Python package."""
    try:
        import gguf
    except ImportError as error:
        raise ConfigError(
            f"{file.path}: reading tensor {tensor.name} needs gguf: pip install 'graphc[torch]'"
        ) from error
    try:
        kind = gguf.GGMLQuantizationType(tensor.kind)
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        raw = _raw(file, tensor, elements, size, kind.name)
        value = gguf.dequantize(raw.reshape(*tensor.shape[:-1], -1), kind)
    except (ValueError, KeyError, NotImplementedError) as error:
        raise UnsupportedError(
            f"{file.path}: tensor {tensor.name} has the element format {tensor.kind}, which is "
            "not known: convert the file to one of " + ", ".join(b.name for b in BLOCKS.values())
        ) from error
    return np.asarray(value, np.float32).reshape(tensor.shape)


def _raw(file: GgufFile, tensor: Tensor, elements: int, size: int, name: str) -> np.ndarray:
    if tensor.shape[-1] % elements:
        raise ModelError(
            f"{file.path}: tensor {tensor.name} has rows of {tensor.shape[-1]} elements, which "
            f"{name} cannot hold: it takes {elements} at a time"
        )
    return file.raw(tensor, math.prod(tensor.shape) // elements * size)
