"""Cast and CastLike: towards zero from float to integer, not-zero to boolean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax
from tvm.relax import op

from graphc.frontend.onnx import fold
from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.table import Operator, Result, Table
from graphc.frontend.onnx.values import (
    DTYPES,
    FLOATS,
    INTEGERS,
    Interval,
    KnownValue,
    TensorValue,
    Value,
    dtype_name,
    numpy_dtype,
)


def _cast(context: Context, node: Node) -> Result:
    value = node.input(0)
    return cast(context, value, _target(node))


def cast(context: Context, value: Value, dtype: str) -> relax.Expr | Value:
    """The value as `dtype`; itself when it is that already."""
    if value.dtype == dtype:
        return value
    expr = context.expr(value)
    if dtype == "bool":
        return op.not_equal(expr, context.constant(0, value.dtype))
    return op.astype(expr, dtype)


def _target(node: Node) -> str:
    if node.op_type == "CastLike":
        return node.input(1).dtype
    number = node.integer("to")
    if number not in DTYPES:
        raise node.unsupported(f"a cast to {dtype_name(number)} is not compiled")
    return DTYPES[number]


def _fold(context: Context, node: Node, arrays: Sequence[np.ndarray | None]) -> KnownValue | None:
    data, dtype = arrays[0], _target(node)
    source = node.input(0).dtype
    if data is None:
        return None
    if data.dtype != object:
        if source in FLOATS and dtype in INTEGERS and not np.isfinite(data.astype("float64")).all():
            return None
        return KnownValue("", dtype, data.astype(numpy_dtype(dtype)))
    try:
        if dtype == "bool":
            data = fold.each(lambda e: not fold.equal(context.symbols, e, 0), data)
        elif dtype in FLOATS:
            data = fold.each(fold.ratio, data)
        else:
            data = fold.each(lambda e: fold.truncate(context.symbols, e), data)
    except fold.UndecidedError:
        return None
    return KnownValue("", dtype, data)


def _interval(context: Context, node: Node) -> Interval | None:
    """Integers that fit keep their bounds; a boolean is 0 or 1."""
    value, dtype = node.input(0), _target(node)
    if value.dtype == "bool":
        return Interval(0, 1)
    known = context.interval(value)
    limits = np.iinfo(dtype)
    if known is None or not (
        context.symbols.at_most(int(limits.min), known.low)
        and context.symbols.at_most(known.high, int(limits.max))
    ):
        return None
    return known


def _convert_keeping_source(context: Context, node: Node) -> Result:
    """An index cast between int32 and int64 is still the input's index."""
    value = node.input(0)
    result = _cast(context, node)
    if not isinstance(value, TensorValue) or not value.source or isinstance(result, TensorValue):
        return result
    if not {value.dtype, _target(node)} <= {"int32", "int64"}:
        return result
    made = context.emit(result, node.outputs[0])
    return TensorValue(made.name, made.dtype, made.shape, made.var, value.interval, value.source)


_CAST = Operator(_convert_keeping_source, fold=_fold, interval=_interval)

TABLE: Table = {
    ("", "Cast", 6): _CAST,
    ("", "CastLike", 15): _CAST,
}
