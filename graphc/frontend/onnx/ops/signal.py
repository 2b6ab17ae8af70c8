"""Signals: DFT and STFT as products with constant matrices, and the mel filter bank."""

from __future__ import annotations

import math

import numpy as np
from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.ops.slice import sliced
from graphc.frontend.onnx.table import Operator, Result, Table
from graphc.frontend.onnx.values import DTYPES, KnownValue, Value
from graphc.frontend.onnx.writer import Writer

_LONGEST = 1 << 13
"""A transform is a matrix of length times length."""


def _dft(context: Context, node: Node) -> Result:
    """sum over n of x[n] exp(-2 pi i k n / length) along an axis; the last axis is re and im."""
    value = node.input(0)
    node.need_float(value)
    node.need_rank(value, 2)
    parts = value.shape[-1]
    if parts not in (1, 2):
        raise node.error(f"its last dimension is {parts}, it must be 1 (real) or 2 (complex)")
    inverse, onesided = bool(node.integer("inverse", 0)), bool(node.integer("onesided", 0))
    axis = _axis(context, node, value)
    held = value.shape[axis]
    if not isinstance(held, int):
        raise node.unsupported(f"a transform of {held} elements: the length must be fixed")
    length = 2 * (held - 1) if inverse and onesided else held
    if node.optional(1) is not None:
        given = context.fixed_ints(node, 1)
        if len(given) != 1:
            raise node.error(f"dft_length has {len(given)} elements, it must have one")
        length = given[0]
    if not 1 <= length <= _LONGEST:
        raise node.unsupported(f"a transform of {length} elements: 1 to {_LONGEST} are compiled")
    taken = min(held, length // 2 + 1 if inverse and onesided else length)
    value = sliced(context, value, {axis: (0, taken, 1)}, f"{node.outputs[0]}.taken")
    return _transformed(Writer(context, node), value, axis, length, inverse, onesided)


def _axis(context: Context, node: Node, value: Value) -> int:
    default = 1
    if node.version >= 20:
        default = -2
        if node.optional(2) is not None:
            given = context.fixed_ints(node, 2)
            if len(given) != 1:
                raise node.error(f"axis has {len(given)} elements, it must have one")
            default = given[0]
    else:
        default = node.integer("axis", 1)
    axis = node.axis(default, value.rank)
    if axis == value.rank - 1:
        raise node.error("its axis is that of the real and imaginary parts")
    return axis


def _transformed(
    w: Writer, value: Value, axis: int, length: int, inverse: bool, onesided: bool
) -> Value:
    """[.., n, .., parts] -> [.., k, .., 2]; a one-sided inverse gives real signals, [.., k, .., 1].

    The axes are moved so that n and the parts are last and one matrix does all of it.
    """
    taken, parts = value.shape[axis], value.shape[-1]
    assert isinstance(taken, int) and isinstance(parts, int), value.shape
    rank = value.rank
    order = [*(k for k in range(rank - 1) if k != axis), axis, rank - 1]
    moved = w.transpose(value, order) if order != list(range(rank)) else value
    outer = moved.shape[: rank - 2]
    matrix = _matrix(taken, parts, length, inverse, onesided)
    count, results = matrix.shape[2:]
    flat = w.reshape(moved, [*outer, taken * parts])
    # Terms cancel: float64 keeps what should be 0 below what float32 inputs can show.
    weight = KnownValue("dft.matrix", "float64", matrix.reshape(taken * parts, -1))
    total = w.cast(w(op.matmul, w.cast(flat, "float64"), weight), value.dtype)
    product = w.reshape(total, [*outer, count, results])
    back = [order.index(k) for k in range(rank)]
    return w.transpose(product, back) if order != list(range(rank)) else product


def _matrix(taken: int, parts: int, length: int, inverse: bool, onesided: bool) -> np.ndarray:
    """[n, part, k, result], in float64."""
    count = length if inverse or not onesided else length // 2 + 1
    # The product modulo the length keeps the angle small and exact.
    steps = np.outer(np.arange(taken), np.arange(count)) % length
    angle = 2 * math.pi * steps / length
    cosine, sine = np.cos(angle), np.sin(angle) * (1 if inverse else -1)
    matrix = np.zeros((taken, 2, count, 2))
    matrix[:, 0, :, 0], matrix[:, 0, :, 1] = cosine, sine
    matrix[:, 1, :, 0], matrix[:, 1, :, 1] = -sine, cosine
    if inverse:
        matrix /= length
        if onesided:
            # Every frequency but the first and the middle one stands for its mirror image too.
            twice = np.full(taken, 2.0)
            twice[0] = 1.0
            if length % 2 == 0 and taken == length // 2 + 1:
                twice[-1] = 1.0
            matrix = matrix[:, :, :, :1] * twice[:, None, None, None]
            # Imaginary parts that cannot be there are ignored, as everywhere.
            matrix[twice == 1.0, 1] = 0.0
    return matrix[:, :parts]


def _stft(context: Context, node: Node) -> Result:
    """The transform of windows of the signal, `frame_step` apart: [b, frames, k, 2]."""
    value = node.input(0)
    node.need_float(value)
    w = Writer(context, node)
    if value.rank == 2:
        value = w.reshape(value, [*value.shape, 1])
    node.need_rank(value, 3, 3)
    batch, held, parts = value.shape
    step = context.fixed_ints(node, 1)
    window = node.optional(2)
    given = context.fixed_ints(node, 3) if node.optional(3) is not None else None
    length = given[0] if given else None
    if window is not None:
        node.need_rank(window, 1, 1)
        length = length if length is not None else window.shape[0]
    if not isinstance(held, int) or not isinstance(length, int) or parts not in (1, 2):
        raise node.unsupported("its signal, window and frame length must have fixed lengths")
    if len(step) != 1 or step[0] < 1 or not 1 <= length <= min(held, _LONGEST):
        raise node.error(f"frames of {length}, {step} apart, do not fit {held} elements")
    if window is not None:
        window = context.cast_shape(window, (length,), node.label)
        node.same_dtype(value, window)
    frames = 1 + (held - length) // step[0]
    places = np.arange(frames)[:, None] * step[0] + np.arange(length)
    index = KnownValue(f"{node.outputs[0]}.places", "int64", places.astype("int64"))
    call = op.take(context.expr(value), context.expr(index), axis=1, mode="fast")
    cut: Value = context.emit(call, f"{node.outputs[0]}.frames", (batch, frames, length, parts))
    if window is not None:
        cut = w(op.multiply, cut, w.reshape(window, [length, 1]))
    return _transformed(w, cut, 2, length, False, bool(node.integer("onesided", 1)))


def _mel_weights(context: Context, node: Node) -> Result:
    """Triangular filters from the bins of a spectrogram to mel bins, all known now."""
    numbers = []
    for index in range(5):
        value = node.input(index)
        if not isinstance(value, KnownValue) or value.symbolic or value.data.size != 1:
            raise node.unsupported(f"input {index} sets a shape and depends on the inputs")
        numbers.append(value.data.reshape(()).item())
    bins, length, rate, low, high = numbers
    dtype = DTYPES.get(node.integer("output_datatype", 1))
    if dtype is None:
        raise node.unsupported(f"output type {node.integer('output_datatype', 1)} is not compiled")
    if not (0 < bins < 1 << 16 and 0 < length < 1 << 20 and rate > 0 and 0 <= low < high):
        raise node.error(f"{numbers} do not describe a filter bank")
    edges = 2595 * np.log10(1 + np.array([low, high]) / 700)
    mel = edges[0] + np.arange(bins + 2) * (edges[1] - edges[0]) / (bins + 2)
    hertz = 700 * (10 ** (mel / 2595) - 1)
    corner = ((length + 1) * hertz // rate).astype(int)
    if corner[-1] > length // 2 + 1:
        raise node.error(f"its upper edge {high} is above half of the sample rate {rate}")
    at = np.arange(length // 2 + 1)[:, None]
    left, centre, right = corner[:-2], corner[1:-1], corner[2:]
    with np.errstate(all="ignore"):
        rising = np.where(centre == left, at == centre, (at - left) / (centre - left))
        falling = (right - at) / (right - centre)
    weights = np.where(
        (at >= left) & (at <= centre), rising, np.where((at > centre) & (at < right), falling, 0)
    )
    return KnownValue(node.outputs[0], dtype, weights.astype(dtype))


TABLE: Table = {
    ("", "DFT", 17): Operator(_dft),
    ("", "STFT", 17): Operator(_stft),
    ("", "MelWeightMatrix", 17): Operator(_mel_weights),
}
