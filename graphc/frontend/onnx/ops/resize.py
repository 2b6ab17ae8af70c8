"""Resize and Upsample: one axis after another, each a weighted sum of a few neighbours.

Interpolation is separable, so an axis of the result is computed from the same axis of the input:
one neighbour for nearest, two for linear, four for cubic. Formulae: ONNX's operator
specification, Resize-19 (coordinates, rounding, cubic coefficients).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tvm import te, tirx

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.symbols import same
from graphc.frontend.onnx.table import Operator, Result, Table
from graphc.frontend.onnx.values import FLOATS, KnownValue, Ratio, Value
from graphc.ir import Expr

_COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)
_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@dataclass(frozen=True)
class Axis:
    """How one axis is resized; `scale` is None where it is length / extent."""

    axis: int
    extent: Expr
    length: Expr
    scale: float | None
    region: tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True)
class Kind:
    """What is the same for all axes."""

    mode: str
    coordinates: str
    rounding: str
    cubic: float
    exclude: bool
    outside: float
    antialias: bool = False


def _resize(context: Context, node: Node) -> Result:
    value = node.input(0)
    kind = Kind(
        mode=node.choice("mode", "nearest", ("nearest", "linear", "cubic")),
        coordinates=node.choice(
            "coordinate_transformation_mode",
            "half_pixel" if node.version >= 11 else "asymmetric",
            _COORDINATES,
        ),
        rounding=node.choice(
            "nearest_mode", "round_prefer_floor" if node.version >= 11 else "floor", _ROUNDINGS
        ),
        cubic=node.number("cubic_coeff_a", -0.75),
        exclude=bool(node.integer("exclude_outside", 0)),
        outside=node.number("extrapolation_value", 0.0),
        antialias=bool(node.integer("antialias", 0)),
    )
    if kind.antialias and kind.mode == "nearest":
        raise node.error("antialias needs linear or cubic interpolation")
    if kind.mode != "nearest" and value.dtype not in FLOATS:
        raise node.unsupported(f"{kind.mode} resizing of {value.dtype} is not compiled")
    return _along(context, node, value, kind, _axes(context, node, value, kind))


def _upsample(context: Context, node: Node) -> Result:
    value = node.input(0)
    mode = node.choice("mode", "nearest", ("nearest", "linear"))
    scales = node.numbers("scales") if node.version < 9 else _floats(node, 1)
    kind = Kind(mode, "asymmetric", "floor", -0.75, False, 0.0)
    axes = _scaled(context, node, value, scales, tuple(range(value.rank)))
    return _along(context, node, value, kind, axes)


def _axes(context: Context, node: Node, value: Value, kind: Kind) -> list[Axis]:
    chosen = tuple(range(value.rank))
    if node.has("axes"):
        chosen = node.axes(node.integers("axes"), value.rank)
    sizes = node.optional(3) if node.version >= 11 else None
    scales = node.optional(2 if node.version >= 11 else 1)
    has_scales = scales is not None and not (scales.rank == 1 and same(scales.shape[0], 0))
    if (sizes is not None) == has_scales:
        raise node.error("it needs either sizes or scales")
    if sizes is None:
        index = 2 if node.version >= 11 else 1
        axes = _scaled_by_input(context, node, value, index, chosen)
    else:
        axes = _sized(context, node, value, chosen)
    if kind.coordinates != "tf_crop_and_resize":
        return axes
    region = _floats(node, 1)
    if len(region) != 2 * len(chosen):
        raise node.error(f"roi has {len(region)} numbers for {len(chosen)} axes")
    ends = {axis: (region[i], region[i + len(chosen)]) for i, axis in enumerate(chosen)}
    return [Axis(a.axis, a.extent, a.length, a.scale, ends[a.axis]) for a in axes]


def _floats(node: Node, index: int) -> tuple[float, ...]:
    value = node.input(index)
    if not isinstance(value, KnownValue) or value.symbolic or value.rank != 1:
        raise node.unsupported(f"input {index} must be a constant list of numbers")
    return tuple(float(number) for number in value.data)


def _scaled_by_input(
    context: Context, node: Node, value: Value, index: int, chosen: tuple[int, ...]
) -> list[Axis]:
    given = node.input(index)
    if isinstance(given, KnownValue) and given.symbolic and given.rank == 1:
        return _symbolic_scales(context, node, value, given, chosen)
    return _scaled(context, node, value, _floats(node, index), chosen)


def _symbolic_scales(
    context: Context, node: Node, value: Value, given: KnownValue, chosen: tuple[int, ...]
) -> list[Axis]:
    """Scales that are exact ratios of dimensions."""
    if given.data.size != len(chosen):
        raise node.error(f"{given.data.size} scales for {len(chosen)} axes")
    axes = []
    for axis, scale in zip(chosen, given.data, strict=True):
        extent = value.shape[axis]
        if isinstance(scale, Ratio):
            total = context.symbols.product([extent, scale.numerator])
            length = context.symbols.floordiv(total, scale.denominator)
            if not context.symbols.equal(
                context.symbols.product([length, scale.denominator]), total
            ):
                raise node.unsupported("a scale that depends on the inputs must divide evenly")
            axes.append(Axis(axis, extent, length, None))
        else:
            axes.append(_one_scaled(context, node, axis, extent, float(scale)))
    return axes


def _scaled(
    context: Context, node: Node, value: Value, scales: tuple[float, ...], chosen: tuple[int, ...]
) -> list[Axis]:
    if len(scales) != len(chosen):
        raise node.error(f"{len(scales)} scales for {len(chosen)} axes")
    return [
        _one_scaled(context, node, axis, value.shape[axis], scale)
        for axis, scale in zip(chosen, scales, strict=True)
    ]


def _one_scaled(context: Context, node: Node, axis: int, extent: Expr, scale: float) -> Axis:
    if not 0 < scale < 2**20:
        raise node.error(f"scale {scale} of axis {axis} is out of range")
    if isinstance(extent, int):
        length: Expr = int(np.floor(np.float32(extent) * np.float32(scale)))
        if length == 0:
            raise node.error(f"scale {scale} leaves nothing of axis {axis}")
    elif float(scale).is_integer():
        length = context.symbols.product([extent, int(scale)])
    elif float(1 / scale).is_integer():
        length = context.symbols.floordiv(extent, int(1 / scale))
    else:
        raise node.unsupported(f"scale {scale} of dimension {extent} is not compiled")
    return Axis(axis, extent, length, scale)


def _sized(context: Context, node: Node, value: Value, chosen: tuple[int, ...]) -> list[Axis]:
    policy = node.choice(
        "keep_aspect_ratio_policy", "stretch", ("stretch", "not_larger", "not_smaller")
    )
    sizes = context.shape_ints(node, 3)
    if len(sizes) != len(chosen):
        raise node.error(f"{len(sizes)} sizes for {len(chosen)} axes")
    for size in sizes:
        if not context.symbols.at_most(1, size):
            raise node.error(f"size {size} is not positive")
    extents = [value.shape[axis] for axis in chosen]
    if policy == "stretch":
        return [Axis(a, e, s, None) for a, e, s in zip(chosen, extents, sizes, strict=True)]
    fixed = [(e, s) for e, s in zip(extents, sizes, strict=True)
             if isinstance(e, int) and isinstance(s, int)]  # fmt: skip
    if len(fixed) != len(sizes):
        raise node.unsupported(f"{policy} with dimensions that are not fixed")
    ratios = [size / extent for extent, size in fixed]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [
        Axis(axis, extent, int(np.floor(scale * extent + 0.5)), scale)
        for axis, (extent, _) in zip(chosen, fixed, strict=True)
    ]


# -- computing -----------------------------------------------------------------------------


def _along(context: Context, node: Node, value: Value, kind: Kind, axes: list[Axis]) -> Result:
    crop = kind.coordinates == "tf_crop_and_resize"
    work = [
        axis for axis in axes
        if crop or not (same(axis.extent, axis.length) and axis.scale in (None, 1.0))
    ]  # fmt: skip
    if not work:
        return value
    name = node.outputs[0]
    for number, axis in enumerate(work):
        shape = list(value.shape)
        shape[axis.axis] = axis.length
        last = number == len(work) - 1
        value = context.emit_te(
            name if last else f"{name}.{axis.axis}",
            _one_axis(node, value, kind, axis, shape),
            [value],
            shape,
            f"resize_{kind.mode}",
        )
    return value


def _one_axis(
    node: Node, value: Value, kind: Kind, axis: Axis, shape: list[Expr]
) -> Callable[[te.Tensor], te.Tensor]:
    dtype = value.dtype if value.dtype in ("float32", "float64") else "float32"

    def resize(x: te.Tensor) -> te.Tensor:
        def element(*at: tirx.Var) -> tirx.Expr:
            position = _coordinate(kind, axis, at[axis.axis])

            def tap(index: tirx.Expr) -> tirx.Expr:
                inside = tirx.max(tirx.min(index, axis.extent - 1), 0)
                where = (*at[: axis.axis], inside, *at[axis.axis + 1 :])
                return x(*where)

            if kind.mode == "nearest":
                total = tap(_nearest(kind, position))
            else:
                base = tirx.floor(position)
                first = tirx.Cast("int64", base)
                weights = _weights(kind, axis, first, position - base)
                if kind.antialias:
                    weights = _wide_weights(node, kind, axis, first, position - base)
                total = tirx.const(0, dtype)
                for offset, weight in weights:
                    total = total + tirx.Cast(dtype, tap(first + offset)) * weight
                total = tirx.Cast(value.dtype, total) if dtype != value.dtype else total
            if kind.coordinates == "tf_crop_and_resize":
                limit = tirx.Cast("float32", tirx.convert(axis.extent - 1)
                                  if isinstance(axis.extent, int) else axis.extent - 1)  # fmt: skip
                beyond = tirx.any(position < tirx.const(0, "float32"), position > limit)
                total = tirx.if_then_else(beyond, tirx.const(kind.outside, value.dtype), total)
            return total

        return te.compute(tuple(shape), element, name="resize")

    return resize


def _float(number: Expr | float) -> tirx.Expr:
    if isinstance(number, (int, float)):
        return tirx.const(float(number), "float32")
    return tirx.Cast("float32", number)


def _coordinate(kind: Kind, axis: Axis, at: tirx.Var) -> tirx.Expr:
    """The place in the input of position `at` of the result, in float32 as in ONNX Runtime."""
    x = tirx.Cast("float32", at)
    length, extent = _float(axis.length), _float(axis.extent)
    if axis.scale is not None:
        scale = _float(axis.scale)
    elif isinstance(axis.length, int) and isinstance(axis.extent, int):
        scale = _float(float(np.float32(axis.length) / np.float32(axis.extent)))
    else:
        scale = length / extent
    half, one = _float(0.5), _float(1.0)
    mode = kind.coordinates
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and not same(axis.length, 1)):
        place = (x + half) / scale - half
        if mode == "half_pixel" or isinstance(axis.length, int):
            return place
        return tirx.if_then_else(length > one, place, _float(0.0))
    if mode == "pytorch_half_pixel":
        return _float(0.0)
    if mode == "half_pixel_symmetric":
        return _centring(axis, scale) + (x + half) / scale - half
    if mode == "align_corners":
        if same(axis.length, 1):
            return _float(0.0)
        return x * (extent - one) / tirx.max(length - one, one)
    if mode == "asymmetric":
        return x / scale
    start, end = (_float(bound) for bound in axis.region)
    if same(axis.length, 1):
        return half * (start + end) * (extent - one)
    return start * (extent - one) + x * (end - start) * (extent - one) / (length - one)


def _centring(axis: Axis, scale: tirx.Expr) -> tirx.Expr:
    """How far half_pixel_symmetric moves the result to the middle; rounded as at run time."""
    if isinstance(axis.length, int) and isinstance(axis.extent, int):
        length, extent = np.float32(axis.length), np.float32(axis.extent)
        ratio = length / extent if axis.scale is None else np.float32(axis.scale)
        return _float(float(extent / np.float32(2) * (np.float32(1) - length / (ratio * extent))))
    adjustment = _float(axis.length) / (scale * _float(axis.extent))
    return _float(axis.extent) * _float(0.5) * (_float(1.0) - adjustment)


def _nearest(kind: Kind, position: tirx.Expr) -> tirx.Expr:
    half = tirx.const(0.5, "float32")
    if kind.rounding == "round_prefer_floor":
        place = tirx.ceil(position - half)
    elif kind.rounding == "round_prefer_ceil":
        place = tirx.floor(position + half)
    else:
        place = tirx.floor(position) if kind.rounding == "floor" else tirx.ceil(position)
    return tirx.Cast("int64", place)


def _weights(
    kind: Kind, axis: Axis, first: tirx.Expr, fraction: tirx.Expr
) -> list[tuple[int, tirx.Expr]]:
    """(offset from the left neighbour, weight)."""
    one = tirx.const(1.0, "float32")
    if kind.mode == "linear":
        weights = [(0, one - fraction), (1, fraction)]
    else:
        a = tirx.const(kind.cubic, "float32")
        two, three, four, five, eight = (tirx.const(float(n), "float32") for n in (2, 3, 4, 5, 8))

        def near(t: tirx.Expr) -> tirx.Expr:
            return ((a + two) * t - (a + three)) * t * t + one

        def far(t: tirx.Expr) -> tirx.Expr:
            return ((a * t - five * a) * t + eight * a) * t - four * a

        weights = [
            (-1, far(one + fraction)),
            (0, near(fraction)),
            (1, near(one - fraction)),
            (2, far(two - fraction)),
        ]
    if not kind.exclude:
        return weights
    zero = tirx.const(0.0, "float32")
    kept = [
        tirx.if_then_else(tirx.all(first + offset >= 0, first + offset < axis.extent), weight, zero)
        for offset, weight in weights
    ]
    total = kept[0]
    for weight in kept[1:]:
        total = total + weight
    return [(offset, weight / total) for (offset, _), weight in zip(weights, kept, strict=True)]


def _wide_weights(
    node: Node, kind: Kind, axis: Axis, first: tirx.Expr, fraction: tirx.Expr
) -> list[tuple[int, tirx.Expr]]:
    """Antialiasing: a kernel as much wider as the axis shrinks; its weights always sum to 1."""
    if axis.scale is not None:
        scale = axis.scale
    elif isinstance(axis.length, int) and isinstance(axis.extent, int):
        scale = axis.length / axis.extent
    else:
        raise node.unsupported("antialiasing an axis that is not fixed is not compiled")
    scale = min(scale, 1.0)
    reach = 1 if kind.mode == "linear" else 2
    if scale < reach / 64:
        raise node.unsupported(f"antialiasing a scale of {scale} is not compiled")
    start = int(np.floor(-reach / scale)) + 1
    one, zero = _float(1.0), _float(0.0)

    def weight(offset: int) -> tirx.Expr:
        distance = tirx.abs((_float(float(offset)) - fraction) * _float(scale))
        if kind.mode == "linear":
            return tirx.max(one - distance, zero)
        a = kind.cubic
        near = ((_float(a + 2) * distance - _float(a + 3)) * distance) * distance + one
        far = ((_float(a) * distance - _float(5 * a)) * distance + _float(8 * a)) * distance
        far = tirx.Select(distance < _float(2.0), far - _float(4 * a), zero)
        return tirx.Select(distance <= one, near, far)

    weights = [(offset, weight(offset)) for offset in range(start, 2 - start)]
    if kind.exclude:
        weights = [
            (k, tirx.if_then_else(tirx.all(first + k >= 0, first + k < axis.extent), v, zero))
            for k, v in weights
        ]
    total = weights[0][1]
    for _, part in weights[1:]:
        total = total + part
    return [(offset, part / total) for offset, part in weights]


TABLE: Table = {
    ("", "Resize", 10): Operator(_resize),
    ("", "Upsample", 7): Operator(_upsample),
}
