"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear, rounded as ONNX Runtime rounds.

    quantise     y = clamp(round(x / scale), low - zero, high - zero) + zero     ties to even
    dequantise   y = (x - zero) * scale

All of it in float32 whatever the scale's type (float64 for a float64 scale), and the division is a
division: a multiplication by the reciprocal rounds differently. A scale is for the whole tensor,
for each index of one axis, or for blocks of consecutive elements along it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.relax import op

from graphc.frontend.onnx import narrow
from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.table import Operator, Result, Table
from graphc.frontend.onnx.values import (
    DTYPES,
    FLOATS,
    INTEGERS,
    KnownValue,
    TensorValue,
    Value,
    dtype_name,
)

At = Callable[[tuple[Any, ...]], list[Any]]
"""The indices of a scale for the indices of an element."""

_QUANTISED = frozenset({"int8", "uint8", "int16", "uint16"})


@dataclass(frozen=True)
class Kind:
    """A quantised type: how elements are stored, and the narrow type that they stand for."""

    carrier: str
    narrow: str = ""

    @property
    def name(self) -> str:
        return self.narrow or self.carrier

    @property
    def is_float(self) -> bool:
        return bool(self.narrow) and narrow.BY_NAME[self.narrow].is_float

    @property
    def limits(self) -> tuple[int, int]:
        if self.narrow:
            return narrow.BY_NAME[self.narrow].limits
        info = np.iinfo(self.carrier)
        return int(info.min), int(info.max)


def kind_of(value: Value) -> Kind:
    return Kind(value.dtype, value.narrow)


def quantised(x: Any, scale: Any, zero: Any | None, kind: Kind, saturate: bool = True) -> Any:
    """The element of `kind` for a float `x`; `zero` is of the kind's carrier."""
    ratio = x / scale
    if kind.is_float:
        if str(ratio.ty) == "float64":
            ratio = ratio.astype("float32")
        return narrow.encode(ratio, kind.narrow, saturate)
    return shifted(ratio, zero, kind)


def shifted(ratio: Any, zero: Any | None, kind: Kind) -> Any:
    """clamp(round(ratio)) + zero as an element of an integer kind."""
    dtype = str(ratio.ty)
    low, high = (tirx.const(limit, dtype) for limit in kind.limits)
    shift = tirx.const(0, dtype) if zero is None else zero.astype(dtype)
    # Clamped before it is rounded: what is far away, or NaN (which takes the first), never
    # becomes an integer that does not exist.
    ratio = tirx.Select(ratio > low - shift, ratio, low - shift)
    ratio = tirx.Select(ratio < high - shift, ratio, high - shift)
    rounded = tirx.nearbyint(ratio) + shift
    return rounded.astype("int32").astype(kind.carrier)


def dequantised(x: Any, scale: Any, zero: Any | None, kind: Kind, wide: str) -> Any:
    """(x - zero) * scale in `wide`."""
    if kind.is_float:
        return narrow.decode(x, kind.narrow).astype(wide) * scale
    if zero is not None:
        x = x.astype("int32") - zero.astype("int32")
    return x.astype(wide) * scale


# -- scales --------------------------------------------------------------------------------


def _is_broken(scale: Value) -> bool:
    """Whether a known scale has a NaN or an infinity in it."""
    if not isinstance(scale, KnownValue) or scale.narrow:
        return False
    return not bool(np.all(np.isfinite(scale.data.astype("float64"))))


def _scales(context: Context, node: Node) -> tuple[Value, Value | None, At]:
    """The scale and the zero point, of one shape, and where an element finds its own."""
    value, scale, zero = node.input(0), node.input(1), node.optional(2)
    node.need_float(scale)
    if _is_broken(scale):
        raise node.error("its scale is not a finite number: quantise the model again")
    if zero is not None:
        if zero.rank != scale.rank and context.symbols.product(zero.shape) != 1:
            raise node.error(
                f"its scale has {scale.rank} dimensions and its zero point {zero.rank}"
            )
        if zero.rank == scale.rank:
            zero = context.cast_shape(zero, scale.shape, node.label)
    if context.symbols.product(scale.shape) == 1:
        if zero is not None and context.symbols.product(zero.shape) != 1:
            raise node.error("it has one scale and several zero points")
        return scale, zero, lambda at: [tirx.const(0, "int64")] * scale.rank
    axis = node.axis(node.integer("axis", 1), value.rank)
    if scale.rank == 1 and not node.integer("block_size", 0):
        context.symbols.unify(scale.shape[0], value.shape[axis], f"{node.label} scales axis {axis}")
        return scale, zero, lambda at: [at[axis]]
    size = _block_size(context, node, value, scale, axis)
    return (
        scale,
        zero,
        lambda at: [place // size if index == axis else place for index, place in enumerate(at)],
    )


def _block_size(context: Context, node: Node, value: Value, scale: Value, axis: int) -> int:
    """The number of elements along `axis` that share a scale."""
    if scale.rank != value.rank:
        raise node.error(f"a blocked scale has {scale.rank} dimensions, the input {value.rank}")
    for index, (left, right) in enumerate(zip(scale.shape, value.shape, strict=True)):
        if index != axis:
            context.symbols.unify(left, right, f"{node.label} scales by blocks")
    extent, blocks = value.shape[axis], scale.shape[axis]
    if not isinstance(extent, int) or not isinstance(blocks, int):
        raise node.unsupported(f"blocks along axis {axis}, whose length is not fixed")
    size = node.integer("block_size", 0)
    if size <= 0:
        size = -(-extent // max(blocks, 1))
    if -(-extent // size) != blocks:
        raise node.error(f"{blocks} scales for {extent} elements in blocks of {size}")
    return size


def _kernel(
    context: Context,
    node: Node,
    kernel: str,
    given: tuple[Value, Value, Value | None],
    where: At,
    element: Callable[[Any, Any, Any | None], Any],
    attrs: Mapping[str, int] = {},
) -> TensorValue:
    """One pointwise kernel over the value, its scales and its zero points."""
    value, scale, zero = given
    shape = value.shape

    def compute(*tensors: te.Tensor) -> te.Tensor:
        def at(*place: Any) -> Any:
            spot = where(place)
            point = None
            if zero is not None:
                point = tensors[2](*(spot if zero.rank == scale.rank else [0] * zero.rank))
            return element(tensors[0](*place), tensors[1](*spot), point)

        return te.compute(list(shape), at, name=kernel)

    args = [value, scale] if zero is None else [value, scale, zero]
    return context.emit_te(node.outputs[0], compute, args, shape, kernel, attrs)


def _wide(*dtypes: str) -> str:
    return "float64" if "float64" in dtypes else "float32"


# -- operators -----------------------------------------------------------------------------


def _quantize(context: Context, node: Node) -> Result:
    value = node.input(0)
    if value.dtype not in FLOATS and value.dtype != "int32":
        raise node.error(f"it quantises floats and int32, this is {value.dtype}")
    scale, zero, where = _scales(context, node)
    kind = _target(node, zero)
    if kind.is_float or is_zero(zero):
        zero = None
    saturate = bool(node.integer("saturate", 1))
    wide = _wide(value.dtype, scale.dtype)

    def element(x: Any, scale: Any, zero: Any | None) -> Any:
        return quantised(x.astype(wide), scale.astype(wide), zero, kind, saturate)

    made = _kernel(context, node, "quantize_linear", (value, scale, zero), where, element)
    return replace(made, narrow=kind.narrow)


def _target(node: Node, zero: Value | None) -> Kind:
    number = node.integer("output_dtype", 0)
    if zero is not None:
        kind = kind_of(zero)
    elif number in narrow.TYPES:
        small = narrow.TYPES[number]
        kind = Kind(small.carrier, small.name)
    elif number and number not in DTYPES:
        raise node.unsupported(f"quantising to {dtype_name(number)} is not compiled")
    else:
        kind = Kind(DTYPES[number] if number else "uint8")
    if not kind.narrow and kind.carrier not in _QUANTISED:
        raise node.error(f"it cannot quantise to {kind.name}")
    if kind.narrow == "float8_e8m0fnu":
        raise node.error(f"it cannot quantise to {kind.name}")
    return kind


def is_zero(zero: Value | None) -> bool:
    """Whether a zero point is known to be 0."""
    return isinstance(zero, KnownValue) and not zero.symbolic and not zero.data.any()


def _dequantize(context: Context, node: Node) -> Result:
    value = node.input(0)
    kind = kind_of(value)
    if value.dtype not in INTEGERS:
        raise node.error(f"it dequantises integers and 8-bit floats, this is {value.dtype}")
    scale, zero, where = _scales(context, node)
    if zero is not None and kind_of(zero) != kind:
        raise node.error(f"its input is {kind.name} and its zero point {kind_of(zero).name}")
    if kind.is_float or is_zero(zero):
        zero = None
    number = node.integer("output_dtype", 0)
    result = DTYPES.get(number, "") if number else scale.dtype
    if result not in FLOATS:
        raise node.error(f"it cannot dequantise to {dtype_name(number)}")
    wide = _wide(scale.dtype, result)

    def element(x: Any, scale: Any, zero: Any | None) -> Any:
        return dequantised(x, scale.astype(wide), zero, kind, wide).astype(result)

    given = (value, scale, zero)
    attrs = {} if kind.narrow else _dequantize_attrs(context, node, *given)
    return _kernel(context, node, "dequantize_linear", given, where, element, attrs)


def _dequantize_attrs(
    context: Context, node: Node, value: Value, scale: Value, zero: Value | None
) -> dict[str, int]:
    """For the passes: that the kernel dequantises by one scale, or by those of an axis."""
    point = {"graphc.dequantize": int(zero is not None)}
    if context.symbols.product(scale.shape) == 1:
        return point
    if scale.rank != 1 or node.integer("block_size", 0):
        return {}
    return {**point, "graphc.dequantize_axis": node.axis(node.integer("axis", 1), value.rank)}


def _dynamic(context: Context, node: Node) -> Result:
    """y, scale and zero point as uint8 from the range of x, which is made to include 0."""
    value = node.input(0)
    if value.dtype != "float32":
        raise node.error(f"it quantises float32, this is {value.dtype}")
    name = node.outputs[0]
    x = context.expr(value)
    low = context.emit(op.min(x), f"{name}.low")
    high = context.emit(op.max(x), f"{name}.high")
    names = [*node.outputs, "", "", ""]

    def range_of(low: te.Tensor, high: te.Tensor) -> tuple[Any, Any]:
        zero = tirx.const(0.0, "float32")
        return tirx.min(low(), zero), tirx.max(high(), zero)

    def scale(low: te.Tensor, high: te.Tensor) -> te.Tensor:
        bottom, top = range_of(low, high)
        step = (top - bottom) / tirx.const(255.0, "float32")
        one = tirx.const(1.0, "float32")
        return te.compute([], lambda: tirx.Select(top == bottom, one, step), name="scale")

    def point(low: te.Tensor, high: te.Tensor, scale: te.Tensor) -> te.Tensor:
        bottom, _ = range_of(low, high)
        ratio = -bottom / scale()
        return te.compute([], lambda: shifted(ratio, None, Kind("uint8")), name="zero_point")

    made = context.emit_te(names[1] or f"{name}.scale", scale, [low, high], (), "quantize_scale")
    zero = context.emit_te(
        names[2] or f"{name}.zero", point, [low, high, made], (), "quantize_zero_point"
    )
    kind = Kind("uint8")
    result = _kernel(
        context,
        node,
        "quantize_linear",
        (value, made, zero),
        lambda at: [],
        lambda x, scale, zero: quantised(x, scale, zero, kind),
    )
    return [result, made, zero][: len(node.outputs)]


TABLE: Table = {
    ("", "QuantizeLinear", 10): Operator(_quantize, narrow="reads"),
    ("", "DequantizeLinear", 10): Operator(_dequantize, narrow="reads"),
    ("", "DynamicQuantizeLinear", 11): Operator(_dynamic),
}
