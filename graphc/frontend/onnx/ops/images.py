"""Col2Im, CenterCropPad, LRN and Det."""

from __future__ import annotations

import math
from typing import Any

from tvm import te, tirx
from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.loops import cell, emit_loops, get, load, nest, number, put, store, when
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.ops.slice import sliced
from graphc.frontend.onnx.table import Operator, Result, Table
from graphc.frontend.onnx.values import Value
from graphc.frontend.onnx.writer import Writer
from graphc.ir import Expr


def _column_to_image(context: Context, node: Node) -> Result:
    """The sum of overlapping blocks [n, c * block, positions] at their places in an image."""
    value = node.input(0)
    node.need_number(value)
    node.need_rank(value, 3, 3)
    image, block = context.known_ints(node, 1), context.fixed_ints(node, 2)
    count = len(image)
    if count < 1 or len(block) != count or any(size < 1 for size in block):
        raise node.error(f"blocks of {block} do not fit an image of {count} dimensions")
    dilations = node.integers("dilations", (1,) * count)
    strides = node.integers("strides", (1,) * count)
    pads = node.integers("pads", (0,) * (2 * count))
    if (len(dilations), len(strides), len(pads)) != (count, count, 2 * count) or min(
        *dilations, *strides
    ) < 1:
        raise node.error("its dilations, strides or pads do not fit the image")
    size = math.prod(block)
    channels = context.symbols.exact_quotient(value.shape[1], size)
    if channels is None:
        raise node.error(f"{value.shape[1]} rows are not made of blocks of {size}")
    steps = [
        context.symbols.simplify(
            context.symbols.floordiv(
                context.symbols.simplify(
                    extent + pads[k] + pads[count + k] - dilations[k] * (block[k] - 1) - 1
                ),
                strides[k],
            )
            + 1
        )
        for k, extent in enumerate(image)
    ]
    context.symbols.unify(
        value.shape[2], context.symbols.product(steps), f"{node.label} places blocks"
    )
    shape = [value.shape[0], channels, *image]

    def col2im(x: te.Tensor) -> te.Tensor:
        axes = [te.reduce_axis((0, extent), f"k{k}") for k, extent in enumerate(block)]

        def element(batch: Any, channel: Any, *at: Any) -> Any:
            row: Any = channel
            column: Any = number(0)
            inside = []
            for k in range(count):
                moved = at[k] + pads[k] - axes[k] * dilations[k]
                step = tirx.floordiv(moved, strides[k])
                inside += [tirx.floormod(moved, strides[k]) == 0, step >= 0, step < steps[k]]
                row = row * block[k] + axes[k]
                column = column * steps[k] + step
            read = tirx.if_then_else(tirx.all(*inside), x(batch, row, column),
                                     tirx.const(0, value.dtype))  # fmt: skip
            return te.sum(read, axis=axes)

        return te.compute(tuple(shape), element, name="col2im")

    return context.emit_te(node.outputs[0], col2im, [value], shape, "col2im")


def _center_crop_pad(context: Context, node: Node) -> Result:
    """The middle of each axis, or the axis in the middle of zeros."""
    value = node.input(0)
    target = context.known_ints(node, 1)
    axes = node.axes(node.integers("axes", tuple(range(value.rank))), value.rank)
    if len(axes) != len(target):
        raise node.error(f"its shape has {len(target)} numbers for {len(axes)} axes")
    w = Writer(context, node)
    symbols = context.symbols
    for axis, wanted in zip(axes, target, strict=True):
        held = value.shape[axis]
        name = f"{node.outputs[0]}.{axis}"
        if symbols.at_most(wanted, held):
            start = symbols.floordiv(symbols.simplify(held - wanted), 2)
            value = sliced(context, value, {axis: (start, wanted, 1)}, name)
        elif symbols.at_most(held, wanted):
            extra = symbols.simplify(wanted - held)
            before = symbols.floordiv(extra, 2)
            after = symbols.simplify(extra - before)
            parts = [
                _zeros(context, w, value, axis, before),
                value,
                _zeros(context, w, value, axis, after),
            ]
            value = w.concat([part for part in parts if part is not None], axis)
        else:
            raise node.unsupported(f"whether {held} elements are cropped or padded to {wanted}")
    return value


def _zeros(context: Context, w: Writer, value: Value, axis: int, extent: Expr) -> Value | None:
    if isinstance(extent, int) and extent == 0:
        return None
    shape = (*value.shape[:axis], extent, *value.shape[axis + 1 :])
    return context.broadcast_to(w.full(0, value.dtype), shape, f"{value.name}.zeros")


def _local_response(context: Context, node: Node) -> Result:
    """x / (bias + alpha / size * sum of squares of the channels around) ^ beta"""
    value = node.input(0)
    node.need_float(value)
    node.need_rank(value, 3)
    size, bias = node.integer("size"), node.number("bias", 1.0)
    alpha, beta = node.number("alpha", 1e-4), node.number("beta", 0.75)
    if not 1 <= size < 1 << 20:
        raise node.error(f"size is {size}, it must be positive")
    before, dtype = (size - 1) // 2, value.dtype

    def around(x: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, size), "k")

        def element(batch: Any, channel: Any, *at: Any) -> Any:
            place = channel + k - before
            inside = tirx.all(place >= 0, place < x.shape[1])
            read = tirx.if_then_else(inside, x(batch, place, *at), tirx.const(0, dtype))
            return te.sum(read * read, axis=k)

        return te.compute(x.shape, element, name="around")

    squares = context.emit_te(f"{node.outputs[0]}.squares", around, [value], value.shape, "around")
    w = Writer(context, node)
    base = w(op.add, w(op.multiply, squares, alpha / size), bias)
    return w(op.divide, value, w(op.power, base, beta))


def _determinant(context: Context, node: Node) -> Result:
    """The product of the pivots of an elimination, each the largest of its column."""
    value = node.input(0)
    node.need_float(value)
    node.need_rank(value, 2)
    size = value.shape[-1]
    context.symbols.unify(value.shape[-2], size, f"{node.label} needs square matrices")
    outer, dtype = value.shape[:-2], value.dtype
    if not isinstance(size, int) or size > 1 << 10:
        raise node.unsupported(f"a determinant of {size} rows is not compiled")

    def body(inputs: list[Any], outputs: list[Any]) -> None:
        (x,), (work, y) = inputs, outputs
        with nest(outer) as at:
            total = cell(dtype, tirx.const(1, dtype))
            with nest([size, size]) as (i, j):
                store(work, [*at, i, j], load(x, [*at, i, j]))
            with nest([size]) as (k,):
                best = cell("int64", k)
                with nest([size]) as (i,):
                    ahead = tirx.abs(load(work, [*at, i, k])) > tirx.abs(
                        load(work, [*at, get(best), k])
                    )
                    with when(tirx.all(i > k, ahead)):
                        put(best, i)
                with when(get(best) != k):
                    put(total, -get(total))
                    with nest([size]) as (j,):
                        held = cell(dtype, load(work, [*at, k, j]))
                        store(work, [*at, k, j], load(work, [*at, get(best), j]))
                        store(work, [*at, get(best), j], get(held))
                pivot = cell(dtype, load(work, [*at, k, k]))
                put(total, get(total) * get(pivot))
                with (
                    nest([size]) as (i,),
                    when(tirx.all(i > k, get(pivot) != tirx.const(0, dtype))),
                ):
                    factor = cell(dtype, load(work, [*at, i, k]) / get(pivot))
                    with nest([size]) as (j,):
                        new = load(work, [*at, i, j]) - get(factor) * load(work, [*at, k, j])
                        store(work, [*at, i, j], new)
            store(y, at, get(total))

    names = [f"{node.outputs[0]}.work", node.outputs[0]]
    outputs = [(dtype, value.shape), (dtype, outer)]
    return emit_loops(context, names, [value], outputs, body, "determinant")[1]


TABLE: Table = {
    ("", "Col2Im", 18): Operator(_column_to_image),
    ("", "CenterCropPad", 18): Operator(_center_crop_pad),
    ("", "LRN", 1): Operator(_local_response),
    ("", "Det", 11): Operator(_determinant),
}
