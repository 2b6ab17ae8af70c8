"""Operators that make tensors from shapes: Range, ConstantOfShape, EyeLike, Trilu."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tvm import tirx
from tvm.relax import op

from graphc.frontend.onnx.context import FOLD_LIMIT, Context
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.symbols import MAX_ELEMENTS
from graphc.frontend.onnx.table import Operator, Result, Table
from graphc.frontend.onnx.values import (
    DTYPES,
    FLOATS,
    Interval,
    KnownValue,
    Ratio,
    TensorValue,
    Value,
    dtype_name,
)
from graphc.frontend.onnx.writer import Writer
from graphc.ir import Expr


def _range(context: Context, node: Node) -> Result:
    values = [node.input(index) for index in range(3)]
    dtype = node.same_dtype(*values)
    node.need_number(values[0])
    if not all(isinstance(value, KnownValue) for value in values):
        return _measured_range(context, node, values, dtype)
    scalars = []
    for index, value in enumerate(values):
        assert isinstance(value, KnownValue)
        if value.data.size != 1:
            raise node.error(f"input {index} has {value.data.size} elements, it must have one")
        scalars.append(value.data.reshape(()).item())
    if any(isinstance(scalar, Ratio) for scalar in scalars):
        scalars = [_whole(node, scalar) for scalar in scalars]
    start, limit, step = scalars
    if not isinstance(step, tirx.Expr) and step == 0:
        raise node.error("its step is 0")
    if any(isinstance(scalar, tirx.Expr) for scalar in scalars):
        return _symbolic_range(context, node, start, limit, step, dtype)
    return _fixed_range(context, node, start, limit, step, dtype)


def _measured_range(context: Context, node: Node, values: Sequence[Value], dtype: str) -> Result:
    """A range whose length a run computes."""
    w, name = Writer(context, node), node.outputs[0]
    start, limit, step = (w.reshape(value, []) for value in values)
    exact = "float64" if dtype in FLOATS else "int64"
    first, last, by = (w.cast(value, exact) for value in (start, limit, step))
    by = w.where(w(op.equal, by, 0), w.full(1, exact), by)  # no division by zero
    span = w(op.subtract, last, first)
    if exact == "int64":  # rounded up
        count: Value = w(op.negative, w(op.floor_divide, w(op.negative, span), by))
    else:
        count = w.cast(w(op.ceil, w(op.divide, span, by)), "int64")
    (length,) = context.measured(node, w(op.maximum, count, 0), name=f"{name}.length")
    places = w.cast(w.arange(length), dtype)
    return w.binary(op.add, w.binary(op.multiply, places, step), start)


def _whole(node: Node, scalar: object) -> Expr:
    if isinstance(scalar, Ratio):
        if isinstance(scalar.denominator, int) and scalar.denominator == 1:
            return scalar.numerator
        raise node.unsupported("a bound that is a fraction of a dimension is not compiled")
    if isinstance(scalar, float):
        if not scalar.is_integer():
            raise node.unsupported("a fractional step over a dimension is not compiled")
        return int(scalar)
    return scalar


def _fixed_range(
    context: Context, node: Node, start: float, limit: float, step: float, dtype: str
) -> Result:
    if not all(math.isfinite(number) for number in (start, limit, step)):
        raise node.error("its bounds are not finite")
    if isinstance(step, int):
        count = max(-((start - limit) // step) if step > 0 else -((limit - start) // -step), 0)
    else:
        count = max(math.ceil((limit - start) / step), 0)
    count = int(count)
    if count > MAX_ELEMENTS:
        raise node.error(f"it would have {count} elements")
    if count <= FOLD_LIMIT:
        data = (start + np.arange(count) * step).astype(dtype)
        return KnownValue(node.outputs[0], dtype, data)
    if dtype not in ("int64", "int32"):
        raise node.unsupported(f"a range of {count} {dtype} elements is not compiled")
    call = op.arange(int(start), int(start + count * step), int(step), dtype)
    made = context.emit(call, node.outputs[0], (count,))
    ends = (int(start), int(start + (count - 1) * step))
    return _with(made, Interval(min(ends), max(ends), True))


def _symbolic_range(
    context: Context, node: Node, start: Expr, limit: Expr, step: Expr, dtype: str
) -> Result:
    symbols = context.symbols
    if not isinstance(step, int):
        raise node.unsupported("a step that is a dimension is not compiled")
    span = symbols.simplify(limit - start if step > 0 else start - limit)
    count = symbols.maximum(symbols.floordiv(span + abs(step) - 1, abs(step)), 0)
    end = symbols.simplify(start + count * step)
    name = node.outputs[0]
    kind = dtype if dtype in ("int64", "int32") else "int64"
    call = op.arange(start, end, step, kind)
    made = context.emit(call, name if kind == dtype else f"{name}.int", (count,))
    if kind != dtype:
        return op.astype(made.var, dtype)
    last = symbols.simplify(end - step)
    low, high = (start, last) if step > 0 else (last, start)
    return _with(made, Interval(low, high, symbols.at_most(1, count)))


def _with(value: TensorValue, interval: Interval) -> TensorValue:
    return TensorValue(value.name, value.dtype, value.shape, value.var, interval)


def _constant_of_shape(context: Context, node: Node) -> Result:
    shape = context.known_ints(node, 0)
    fill = node.array("value") if node.has("value") else np.zeros(1, "float32")
    if fill.size != 1:
        raise node.error(f"its value has {fill.size} elements, it must have one")
    dtype = str(fill.dtype)
    one = fill.reshape(())
    size = 1
    for extent in shape:
        if isinstance(extent, int) and extent < 0:
            raise node.error(f"its shape has the negative dimension {extent}")
        size = size * extent if isinstance(extent, int) else FOLD_LIMIT + 1
    if size <= FOLD_LIMIT:
        fixed = [extent for extent in shape if isinstance(extent, int)]
        return KnownValue(node.outputs[0], dtype, np.full(fixed, one))
    call = op.full(tuple(shape), context.constant(one, dtype), dtype)
    made = context.emit(call, node.outputs[0], shape)
    if dtype in FLOATS or dtype == "bool":
        return made
    return _with(made, Interval(int(one), int(one), True))


def _eye_like(context: Context, node: Node) -> Result:
    """Ones on diagonal k of a matrix of the input's shape."""
    value = node.input(0)
    node.need_rank(value, 2, 2)
    number = node.integer("dtype", 0)
    if number and number not in DTYPES:
        raise node.unsupported(f"type {dtype_name(number)} is not compiled")
    dtype = DTYPES[number] if number else value.dtype
    rows, columns = value.shape
    name, k = node.outputs[0], node.integer("k", 0)
    if not -(2**40) < k < 2**40:
        raise node.error(f"k is {k}")
    down = context.emit(op.arange(0, rows, 1, "int64"), f"{name}.rows").var
    along = context.emit(op.arange(k and -k, columns - k, 1, "int64"), f"{name}.columns",
                         (columns,)).var  # fmt: skip
    down = context.emit(op.reshape(down, (rows, 1)), f"{name}.down", (rows, 1)).var
    return op.astype(context.emit(op.equal(down, along), f"{name}.diagonal").var, dtype)


def _trilu(context: Context, node: Node) -> Result:
    value = node.input(0)
    node.need_rank(value, 2)
    k: Expr = 0
    if node.optional(1) is not None:
        offset = node.input(1)
        if isinstance(offset, KnownValue):
            given = context.known_ints(node, 1)
        else:
            given = context.measured(node, offset, -(2**40), 2**40)
        if len(given) != 1:
            raise node.error(f"k has {len(given)} elements, it must have one")
        k = given[0]
    if isinstance(k, int):
        k = min(max(k, -(2**40)), 2**40)
    name, x = node.outputs[0], context.expr(value)
    kept = op.triu if node.integer("upper", 1) else op.tril
    if value.dtype != "bool":
        return kept(x, k)
    wide = context.emit(op.astype(x, "int8"), f"{name}.wide").var
    half = context.emit(kept(wide, k), f"{name}.half").var
    return op.not_equal(half, context.constant(0, "int8"))


TABLE: Table = {
    ("", "Range", 11): Operator(_range),
    ("", "ConstantOfShape", 9): Operator(_constant_of_shape),
    ("", "EyeLike", 9): Operator(_eye_like),
    ("", "Trilu", 14): Operator(_trilu),
}
