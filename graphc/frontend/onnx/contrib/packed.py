"""Constant block-quantised weights of ONNX as weights of few bits: their codes are kept.

    w[n, k] = (q[n, k] - zero[n, k / block]) * scale[n, k / block]
            =  q[n, k] * scale + minimum                minimum = -zero * scale

Without zero points, or with the middle ones only, the codes are signed and there are no minima.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from graphc.frontend.onnx.values import KnownValue, Value
from graphc.ir import QuantizedWeight

Bytes = npt.NDArray[np.uint8]


def packed_weight(
    operands: Sequence[Value | None],
    shape: tuple[int, int],
    block: int,
    bits: int,
    activation: str,
) -> QuantizedWeight | None:
    """A weight [N, K] from data, scales and zero points; None unless all are constants that fit."""
    known = [operand for operand in operands if isinstance(operand, KnownValue)]
    if len(known) != sum(operand is not None for operand in operands) or shape[1] % block:
        return None
    if any(operand.symbolic for operand in known) or known[1].dtype != "float32":
        return None
    rows, depth = shape
    data, scales = known[0].data, known[1].data.reshape(rows, -1).T
    middle = 1 << (bits - 1)
    zeros = None if len(known) < 3 else _zeros(known[2].data, (depth // block, rows), bits)
    if zeros is None or bool((zeros == middle).all()):
        codes = functools.partial(_signed, data, shape, bits)
        return QuantizedWeight(
            codes, scales, None, block, bits, transposed=True, activation=activation
        )
    codes = functools.partial(_unsigned, data, shape, bits)
    minima = -zeros * scales
    return QuantizedWeight(
        codes, scales, minima, block, bits, transposed=True, activation=activation
    )


def unpacked(data: Bytes, count: int, bits: int) -> Bytes:
    """[.., bytes] -> [.., count]: the lowest bits of a byte come first."""
    if bits == 8:
        return data[..., :count]
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = data[..., None] >> shifts & np.uint8((1 << bits) - 1)
    flat: Bytes = codes.reshape(*data.shape[:-1], -1)
    return flat[..., :count]


def _unsigned(data: Bytes, shape: tuple[int, int], bits: int) -> np.ndarray:
    return unpacked(data.reshape(shape[0], -1), shape[1], bits).T


def _signed(data: Bytes, shape: tuple[int, int], bits: int) -> np.ndarray:
    codes = _unsigned(data, shape, bits).astype(np.int16) - (1 << (bits - 1))
    return codes.astype(np.int8)


def _zeros(data: np.ndarray, shape: tuple[int, int], bits: int) -> npt.NDArray[np.float32]:
    """Zero points [groups, N], packed like the data or floats."""
    groups, rows = shape
    value = data.reshape(rows, -1)
    if data.dtype == np.uint8:
        value = unpacked(value, groups, bits)
    floats: npt.NDArray[np.float32] = value.astype(np.float32).T
    return floats
