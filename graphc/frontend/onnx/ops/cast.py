"""Cast, CastLike and BitCast: towards zero from float to integer, not-zero to boolean.

Floats become 8-bit and 4-bit floats by rounding to nearest, ties to even; too large ones the
largest (`saturate`) or infinity or NaN. Integers of 2 and 4 bits keep the low bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.relax import op

from graphc.frontend.onnx import fold, narrow
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
    value, target = node.input(0), _target(node)
    if value.narrow == target.narrow and value.dtype == target.carrier:
        return value
    if not target.narrow and not (value.narrow and narrow.BY_NAME[value.narrow].is_float):
        plain = cast(context, value, target.carrier)
        return plain if isinstance(plain, relax.Expr) else replace(plain, narrow="")
    made = _cast_narrow(context, node, value, target)
    return replace(made, narrow=target.narrow)


def _cast_narrow(context: Context, node: Node, value: Value, target: Target) -> TensorValue:
    """From or to a type that TVM does not compute with, through float32 or int32."""
    source = narrow.BY_NAME.get(value.narrow)
    small = narrow.BY_NAME.get(target.narrow)
    saturate = bool(node.integer("saturate", 1))
    mode = node.choice("round_mode", "up", ("up", "down", "nearest"))

    def element(x: Any) -> Any:
        if source is not None and source.is_float:
            x = narrow.decode(x, source.name)
        if small is None:
            if target.carrier == "bool":
                return x != tirx.const(0, str(x.ty))
            return x.astype(target.carrier)
        if small.is_float:
            return narrow.encode(x.astype("float32"), small.name, saturate, mode)
        return narrow.wrap(x.astype("int32"), small)

    def compute(x: te.Tensor) -> te.Tensor:
        return te.compute(list(value.shape), lambda *at: element(x(*at)), name="cast")

    return context.emit_te(node.outputs[0], compute, [value], value.shape, "cast")


def _bit_cast(context: Context, node: Node) -> Result:
    """The same bits read as another type of as many."""
    value, target = node.input(0), _target(node)
    if _bits(value.dtype, value.narrow) != _bits(target.carrier, target.narrow):
        raise node.error(
            f"{value.narrow or value.dtype} and {target.name} do not have the same number of bits"
        )
    if value.dtype == target.carrier and not (
        {value.narrow, target.narrow} & _SIGNED_NIBBLES and value.narrow != target.narrow
    ):
        return replace(value, narrow=target.narrow)
    if value.narrow or target.narrow:
        raise node.unsupported(f"from {value.narrow or value.dtype} to {target.name}")

    def element(x: Any) -> Any:
        if value.dtype == "bool" or target.carrier == "bool":
            return x.astype(target.carrier)
        return tirx.reinterpret(target.carrier, x)

    def compute(x: te.Tensor) -> te.Tensor:
        return te.compute(list(value.shape), lambda *at: element(x(*at)), name="bit_cast")

    return context.emit_te(node.outputs[0], compute, [value], value.shape, "bit_cast")


_SIGNED_NIBBLES = frozenset({"int4", "int2"})


def _bits(dtype: str, small: str) -> int:
    if small:
        return narrow.BY_NAME[small].bits
    return 8 if dtype == "bool" else 8 * numpy_dtype(dtype).itemsize


def cast(context: Context, value: Value, dtype: str) -> relax.Expr | Value:
    """The value as `dtype`; itself when it is that already."""
    if value.dtype == dtype:
        return value
    expr = context.expr(value)
    if dtype == "bool":
        return op.not_equal(expr, context.constant(0, value.dtype))
    return op.astype(expr, dtype)


@dataclass(frozen=True)
class Target:
    """The type to cast to: what holds it, and its own name if that is narrower."""

    carrier: str
    narrow: str = ""

    @property
    def name(self) -> str:
        return self.narrow or self.carrier


def _target(node: Node) -> Target:
    if node.op_type == "CastLike":
        return Target(node.input(1).dtype, node.input(1).narrow)
    number = node.integer("to")
    if number in narrow.TYPES:
        small = narrow.TYPES[number]
        return Target(small.carrier, small.name)
    if number not in DTYPES:
        raise node.unsupported(f"a cast to {dtype_name(number)} is not compiled")
    return Target(DTYPES[number])


def _fold(context: Context, node: Node, arrays: Sequence[np.ndarray | None]) -> KnownValue | None:
    data, target = arrays[0], _target(node)
    source, dtype = node.input(0).dtype, target.carrier
    if data is None or target.narrow:
        return None
    if node.input(0).narrow:
        small = narrow.BY_NAME[node.input(0).narrow]
        if small.is_float:
            data, source = data.view(small.numpy).astype("float32"), "float32"
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
    value, dtype = node.input(0), _target(node).carrier
    if value.dtype == "bool":
        return Interval(0, 1)
    if value.narrow or _target(node).narrow:
        return None
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
    if not {value.dtype, _target(node).name} <= {"int32", "int64"}:
        return result
    made = context.emit(result, node.outputs[0])
    return TensorValue(made.name, made.dtype, made.shape, made.var, value.interval, value.source)


_CAST = Operator(_convert_keeping_source, fold=_fold, interval=_interval, narrow="reads")

TABLE: Table = {
    ("", "Cast", 6): _CAST,
    ("", "CastLike", 15): _CAST,
    ("", "BitCast", 26): Operator(_bit_cast, narrow="reads"),
}
