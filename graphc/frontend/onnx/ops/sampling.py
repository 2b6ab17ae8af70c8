"""Reads at computed places with interpolation: GridSample, DeformConv, RoiAlign, AffineGrid."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.extents import scalar
from graphc.frontend.onnx.loops import cell, emit_loops, get, load, loop, nest, number, put, store
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.table import Operator, Result, Table
from graphc.frontend.onnx.values import KnownValue, Value
from graphc.frontend.onnx.writer import Writer
from graphc.ir import Expr

Tap = tuple[Any, Any, Any]
"""(index in range, weight, whether the place lies in the tensor)."""


def _grid_sample(context: Context, node: Node) -> Result:
    """y[n, c, p] = x[n, c] interpolated at grid[n, p], whose last axis is (x, y, ..) in [-1, 1]."""
    value, grid = node.input(0), node.input(1)
    node.need_float(value)
    node.need_float(grid)
    node.need_rank(value, 3)
    node.need_rank(grid, value.rank, value.rank)
    count = value.rank - 2
    context.symbols.unify(grid.shape[-1], count, f"{node.label} reads places")
    context.symbols.unify(grid.shape[0], value.shape[0], f"{node.label} batches them")
    names = {"bilinear": "linear", "bicubic": "cubic"}
    mode = node.choice("mode", "linear", ("linear", "nearest", "cubic", *names))
    padding = node.choice("padding_mode", "zeros", ("zeros", "border", "reflection"))
    aligned = bool(node.integer("align_corners", 0))
    dtype = value.dtype
    kind = "float64" if "float64" in (dtype, grid.dtype) else "float32"
    shape = [*value.shape[:2], *grid.shape[1:-1]]

    def find_places(inputs: list[Any], outputs: list[Any]) -> None:
        (given, _), (places,) = inputs, outputs
        with nest(grid.shape[:-1]) as at:
            for axis in range(count):
                raw = tirx.Cast(kind, load(given, [*at, number(count - 1 - axis)]))
                place = _place(raw, value.shape[2 + axis], kind, names.get(mode, mode), padding,
                               aligned)  # fmt: skip
                store(places, [*at, number(axis)], place)

    # Apart from what reads them: written out for every tap, places grow out of hand.
    (found,) = emit_loops(
        context, [f"{node.outputs[0]}.places"], [grid, value], [(kind, grid.shape)], find_places,
        "grid_places",
    )  # fmt: skip

    def grid_sample(x: te.Tensor, places: te.Tensor) -> te.Tensor:
        def element(batch: Any, channel: Any, *at: Any) -> Any:
            taps = []
            for axis in range(count):
                place = places(batch, *at, number(axis))
                extent = value.shape[2 + axis]
                taps.append(_taps(place, extent, kind, names.get(mode, mode), padding, aligned))
            total = tirx.const(0, kind)
            for combination in itertools.product(*taps):
                index = [tap[0] for tap in combination]
                weight = combination[0][1]
                for tap in combination[1:]:
                    weight = weight * tap[1]
                read = tirx.Cast(kind, x(batch, channel, *index))
                if padding == "zeros":
                    inside = tirx.all(*(tap[2] for tap in combination))
                    read = tirx.Select(inside, read, tirx.const(0, kind))
                total = total + weight * read
            return tirx.Cast(dtype, total)

        return te.compute(tuple(shape), element, name="grid_sample")

    return context.emit_te(node.outputs[0], grid_sample, [value, found], shape, "grid_sample")


def _place(raw: Any, extent: Expr, kind: str, mode: str, padding: str, aligned: bool) -> Any:
    """A place in [-1, 1] as one between the elements of an axis."""
    size, low, high = _borders(extent, kind, aligned)
    one, half = tirx.const(1, kind), tirx.const(0.5, kind)
    place = (raw + one) * half * (size - one) if aligned else ((raw + one) * size - one) * half
    if mode == "nearest":
        place = tirx.nearbyint(place)
    outside = tirx.any(place < low, place > high)
    if padding == "border":
        # Cubic interpolation outside leans on the border's elements, as in torch: three of them.
        room = tirx.const(3 if mode == "cubic" else 0, kind)
        clamped = tirx.min(tirx.max(place, -room), size - one + room)
        place = tirx.Select(outside, clamped, place)
    elif padding == "reflection":
        place = tirx.Select(outside, _reflected(place, low, high, kind), place)
    if mode == "nearest":
        place = tirx.nearbyint(place)  # reflected by a border between two elements
    # A place may be anything, NaN too: far from the tensor all that matters is that it is outside.
    bound = size + tirx.const(8, kind)
    return tirx.Select(tirx.all(place > -bound, place < bound), place, -bound)


def _borders(extent: Expr, kind: str, aligned: bool) -> tuple[Any, Any, Any]:
    """The extent, and the first and the last place of the tensor."""
    size = tirx.Cast(kind, extent) if not isinstance(extent, int) else tirx.const(extent, kind)
    if aligned:
        return size, tirx.const(0, kind), size - tirx.const(1, kind)
    return size, tirx.const(-0.5, kind), size - tirx.const(0.5, kind)


def _taps(place: Any, extent: Expr, kind: str, mode: str, padding: str, aligned: bool) -> list[Tap]:
    """The elements along one axis that a place is interpolated from."""
    _, low, high = _borders(extent, kind, aligned)
    one = tirx.const(1, kind)
    if mode == "nearest":
        return [_tap(tirx.Cast("int64", place), one, extent, padding, low, high, kind)]
    base = tirx.floor(place)
    part = place - base
    start = tirx.Cast("int64", base)
    offsets, weights = (
        ((0, 1), [one - part, part]) if mode == "linear" else ((-1, 0, 1, 2), _cubic(part, kind))
    )
    return [
        _tap(start + offset, weight, extent, padding, low, high, kind)
        for offset, weight in zip(offsets, weights, strict=True)
    ]


def _tap(
    index: Any, weight: Any, extent: Expr, padding: str, low: Any, high: Any, kind: str
) -> Tap:
    inside = tirx.all(index >= 0, index < extent)
    if padding == "reflection":
        turned = tirx.nearbyint(_reflected(tirx.Cast(kind, index), low, high, kind))
        turned = tirx.Cast("int64", turned)
        index = tirx.Select(inside, index, turned)
    index = tirx.min(tirx.max(index, number(0)), extent - number(1))
    return index, weight, inside


def _reflected(place: Any, low: Any, high: Any, kind: str) -> Any:
    """Folded back at the borders until it is between them: a triangle wave."""
    span = tirx.max(high - low, tirx.const(1e-30, kind))
    period = span + span
    waves = (place - low) / period
    rest = (waves - tirx.floor(waves)) * period
    return high - tirx.abs(span - rest)


def _cubic(t: Any, kind: str) -> list[Any]:
    """Keys' cubic convolution with a = -0.75."""

    def c(number: float) -> Any:
        return tirx.const(number, kind)

    a = -0.75

    def outer(x: Any) -> Any:
        return ((c(a) * x - c(5 * a)) * x + c(8 * a)) * x - c(4 * a)

    def inner(x: Any) -> Any:
        return (c(a + 2) * x - c(a + 3)) * x * x + c(1)

    return [outer(t + c(1)), inner(t), inner(c(1) - t), outer(c(2) - t)]


# -- DeformConv ----------------------------------------------------------------------------


def _deform_conv(context: Context, node: Node) -> Result:
    """A convolution whose taps are moved by `offset` (bilinear, 0 outside) and scaled by a mask."""
    value, weight, offset = node.input(0), node.input(1), node.input(2)
    bias, mask = node.optional(3), node.optional(4)
    node.need_float(value)
    for item in (value, weight, offset):
        node.need_rank(item, 4, 4)
    fixed = [e for e in (*weight.shape, *value.shape[1:2]) if isinstance(e, int)]
    if len(fixed) != 5:
        raise node.unsupported("a number of channels that depends on the inputs")
    outputs, per_group, kh, kw, channels = fixed
    groups, moved = node.integer("group", 1), node.integer("offset_group", 1)
    if groups < 1 or moved < 1 or per_group * groups != channels or outputs % groups:
        raise node.error(f"{channels} channels and {outputs} filters do not make {groups} groups")
    if channels % moved:
        raise node.error(f"{channels} channels do not make {moved} offset groups")
    strides, dilations = (node.integers(n, (1, 1)) for n in ("strides", "dilations"))
    pads = node.integers("pads", (0, 0, 0, 0))
    if len(strides) != 2 or len(dilations) != 2 or len(pads) != 4:
        raise node.error("its strides, dilations or pads are not those of two dimensions")
    dtype = value.dtype
    rows, columns = offset.shape[2:]
    context.symbols.unify(offset.shape[1], moved * kh * kw * 2, f"{node.label} moves its taps")
    args = [value, weight, offset, *(item for item in (bias, mask) if item is not None)]
    shape = [value.shape[0], outputs, rows, columns]
    filters, spread = outputs // groups, channels // moved

    def deform_conv(x: te.Tensor, w: te.Tensor, by: te.Tensor, *rest: te.Tensor) -> te.Tensor:
        channel = te.reduce_axis((0, per_group), "channel")
        i, j = te.reduce_axis((0, kh), "i"), te.reduce_axis((0, kw), "j")

        def element(n: Any, o: Any, r: Any, c: Any) -> Any:
            source = tirx.floordiv(o, filters) * per_group + channel
            tap = (tirx.floordiv(source, spread) * kh + i) * kw + j
            places = [
                tirx.Cast(dtype, at * strides[k] - pads[k] + step * dilations[k])
                + by(n, tap * 2 + k, r, c)
                for k, (at, step) in enumerate(((r, i), (c, j)))
            ]
            read = _bilinear(lambda *at: x(n, source, *at), places, value.shape[2:], dtype)
            if mask is not None:
                read = read * rest[-1](n, tap, r, c)
            return te.sum(read * w(o, channel, i, j), axis=[channel, i, j])

        total = te.compute(tuple(shape), element, name="deform_conv")
        if bias is None:
            return total
        return te.compute(
            tuple(shape), lambda n, o, r, c: total(n, o, r, c) + rest[0](o), name="with_bias"
        )

    return context.emit_te(node.outputs[0], deform_conv, args, shape, "deform_conv")


def _bilinear(
    read: Callable[..., Any], places: Sequence[Any], extents: Sequence[Expr], dtype: str
) -> Any:
    """The value between four elements; what lies outside counts as 0."""
    one = tirx.const(1, dtype)
    sides = []
    for raw, extent in zip(places, extents, strict=True):
        size = (
            tirx.Cast(dtype, extent) if not isinstance(extent, int) else tirx.const(extent, dtype)
        )
        place = tirx.Select(tirx.all(raw > -one - one, raw < size + one), raw, -one - one)
        base = tirx.floor(place)
        start = tirx.Cast("int64", base)
        part = place - base
        sides.append([(start, one - part, extent), (start + 1, part, extent)])
    total = tirx.const(0, dtype)
    for corner in itertools.product(*sides):
        inside = tirx.all(*(t for at, _, e in corner for t in (at >= 0, at < e)))
        index = [tirx.min(tirx.max(at, number(0)), e - number(1)) for at, _, e in corner]
        value = tirx.Select(inside, read(*index), tirx.const(0, dtype))
        total = total + corner[0][1] * corner[1][1] * value
    return total


# -- RoiAlign ------------------------------------------------------------------------------


def _roi_align(context: Context, node: Node) -> Result:
    """Each region of interest as a grid of bins, each the mean (or maximum) of its samples."""
    value, regions, batches = node.input(0), node.input(1), node.input(2)
    node.need_float(value)
    node.same_dtype(value, regions)
    node.need_rank(value, 4, 4)
    node.need_rank(regions, 2, 2)
    context.symbols.unify(regions.shape[1], 4, f"{node.label} reads corners")
    batches = context.cast_shape(batches, (regions.shape[0],), node.label)
    rows, columns = node.integer("output_height", 1), node.integer("output_width", 1)
    if rows < 1 or columns < 1:
        raise node.error(f"its output is {rows} x {columns}")
    samples = node.integer("sampling_ratio", 0)
    scale = node.number("spatial_scale", 1.0)
    mode = node.choice("mode", "avg", ("avg", "max"))
    half = node.version >= 16 and node.choice(
        "coordinate_transformation_mode", "half_pixel", ("half_pixel", "output_half_pixel")
    ) == "half_pixel"  # fmt: skip
    safe = context.checked(
        node, context.tensor(batches), 0, context.symbols.simplify(value.shape[0] - 1)
    )
    dtype = value.dtype
    height, width = value.shape[2:]
    shape = [regions.shape[0], value.shape[1], rows, columns]

    def c(value: float) -> Any:
        return tirx.const(value, dtype)

    def body(inputs: list[Any], outputs: list[Any]) -> None:
        (x, corners, owner), (y,) = inputs, outputs
        with nest(shape) as (roi, channel, r, k):
            starts, bins, counts = [], [], []
            for axis, at, bin_count in ((1, r, rows), (0, k, columns)):
                first, last = (
                    load(corners, [roi, number(axis + side)]) * c(scale) - c(0.5 if half else 0.0)
                    for side in (0, 2)
                )
                extent = last - first if half else tirx.max(last - first, c(1))
                size = extent / c(bin_count)
                taken = number(samples) if samples > 0 else tirx.Cast("int64", tirx.ceil(size))
                counts.append(cell("int64", tirx.min(taken, number(1 << 20))))
                bins.append(cell(dtype, size))
                starts.append(cell(dtype, first + tirx.Cast(dtype, at) * size))
            total = cell(dtype, c(0))
            seen = cell("int64", number(0))
            i = cell("int64", number(0))
            with loop(get(i) < get(counts[0])):
                j = cell("int64", number(0))
                with loop(get(j) < get(counts[1])):
                    places = [
                        get(start) + (tirx.Cast(dtype, get(step)) + c(0.5)) * get(size)
                        / tirx.Cast(dtype, get(count))
                        for start, size, step, count in zip(starts, bins, (i, j), counts,
                                                            strict=True)
                    ]  # fmt: skip
                    corner = _corners(
                        x, load(owner, [roi]), channel, places, (height, width), dtype
                    )
                    if mode == "avg":
                        put(total, get(total) + corner[0] + corner[1] + corner[2] + corner[3])
                    else:
                        top = tirx.max(tirx.max(corner[0], corner[1]),
                                       tirx.max(corner[2], corner[3]))  # fmt: skip
                        put(total, tirx.Select(get(seen) == 0, top, tirx.max(get(total), top)))
                    put(seen, get(seen) + 1)
                    put(j, get(j) + 1)
                put(i, get(i) + 1)
            result = get(total)
            if mode == "avg":
                result = result / tirx.Cast(dtype, tirx.max(get(seen), number(1)))
            store(y, [roi, channel, r, k], result)

    return emit_loops(
        context, node.outputs[:1], [value, regions, safe], [(dtype, shape)], body, "roi_align"
    )


def _corners(
    x: Any, batch: Any, channel: Any, places: Sequence[Any], extents: Sequence[Expr], dtype: str
) -> list[Any]:
    """The four weighted elements around a place; zeros more than one element outside."""
    one, zero = tirx.const(1, dtype), tirx.const(0, dtype)
    sides, inside = [], []
    for place, extent in zip(places, extents, strict=True):
        size = (
            tirx.Cast(dtype, extent) if not isinstance(extent, int) else tirx.const(extent, dtype)
        )
        inside += [place >= -one, place <= size]
        last = extent - number(1)
        bounded = tirx.min(tirx.max(place, zero), size)
        base = tirx.min(tirx.Cast("int64", bounded), last)
        part = tirx.Select(base >= last, zero, bounded - tirx.Cast(dtype, base))
        sides.append([(base, one - part), (tirx.min(base + 1, last), part)])
    within = tirx.all(*inside)
    return [
        tirx.Select(within, wy * wx * load(x, [batch, channel, at_y, at_x]), zero)
        for (at_y, wy), (at_x, wx) in itertools.product(*sides)
    ]


# -- AffineGrid ----------------------------------------------------------------------------


def _affine_grid(context: Context, node: Node) -> Result:
    """theta [n, r, r + 1] applied to the centres (or corners) of a grid over [-1, 1]."""
    theta = node.input(0)
    node.need_float(theta)
    node.need_rank(theta, 3, 3)
    size = context.known_ints(node, 1)
    count = len(size) - 2
    if count not in (2, 3):
        raise node.error(f"its size has {len(size)} dimensions, it must have 4 or 5")
    theta = context.cast_shape(theta, (size[0], count, count + 1), node.label)
    aligned = bool(node.integer("align_corners", 0))
    w = Writer(context, node)
    dtype, spatial = theta.dtype, size[2:]
    columns: list[Value] = []
    for axis in reversed(range(count)):
        along: list[Expr] = [1] * count
        along[axis] = spatial[axis]
        line = w.reshape(_centres(w, context, node, spatial[axis], dtype, aligned), [*along, 1])
        columns.append(context.broadcast_to(line, (*spatial, 1), f"{node.outputs[0]}.axis"))
    ones = context.broadcast_to(w.full(1, dtype), (*spatial, 1), f"{node.outputs[0]}.one")
    points = w.reshape(w.concat([*columns, ones], count),
                       [context.symbols.product(spatial), count + 1])  # fmt: skip
    product = w(op.matmul, points, w.transpose(theta, [0, 2, 1]))
    return w.reshape(product, [size[0], *spatial, count])


def _centres(
    w: Writer, context: Context, node: Node, extent: Expr, dtype: str, aligned: bool
) -> Value:
    if isinstance(extent, int):
        at = np.arange(extent, dtype="float64")
        places = (2 * at + 1) / extent - 1
        if aligned:
            places = -1 + 2 * at / (extent - 1) if extent > 1 else np.zeros(1)
        return KnownValue(f"{node.outputs[0]}.line", dtype, places.astype(dtype))
    at_run_time = w.cast(w.arange(extent), dtype)
    length: Value = w.cast(scalar(extent), dtype)
    if aligned:
        span = w(op.maximum, w(op.subtract, length, 1), 1)
        return w(op.subtract, w.binary(op.divide, w(op.multiply, at_run_time, 2), span), 1)
    odd = w(op.add, w(op.multiply, at_run_time, 2), 1)
    return w(op.subtract, w.binary(op.divide, odd, length), 1)


TABLE: Table = {
    ("", "GridSample", 16): Operator(_grid_sample),
    ("", "DeformConv", 19): Operator(_deform_conv),
    ("", "RoiAlign", 10): Operator(_roi_align),
    ("", "AffineGrid", 20): Operator(_affine_grid),
}
