"""Operators that move or repeat elements: Transpose, Expand, Tile, Concat, Split, blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm.relax import op

from graphc.frontend.onnx.context import FOLD_LIMIT, Context
from graphc.frontend.onnx.extents import known
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.ops.slice import sliced
from graphc.frontend.onnx.symbols import same
from graphc.frontend.onnx.table import Operator, Result, Table
from graphc.frontend.onnx.values import Interval, KnownValue, TensorValue, Value
from graphc.frontend.onnx.writer import Writer
from graphc.ir import Expr


def _permutation(node: Node, rank: int) -> tuple[int, ...]:
    permutation = node.integers("perm", tuple(reversed(range(rank))))
    if sorted(permutation) != list(range(rank)):
        raise node.error(f"perm {list(permutation)} is not an order of {rank} dimensions")
    return permutation


def _transpose(context: Context, node: Node) -> Result:
    value = node.input(0)
    permutation = _permutation(node, value.rank)
    if permutation == tuple(range(value.rank)):
        return value
    return op.permute_dims(context.expr(value), list(permutation))


def _fold_transpose(
    context: Context, node: Node, arrays: Sequence[np.ndarray | None]
) -> np.ndarray | None:
    data = arrays[0]
    return None if data is None else data.transpose(_permutation(node, data.ndim))


# -- Expand, Tile --------------------------------------------------------------------------


def _expand(context: Context, node: Node) -> Result:
    value = node.input(0)
    given = node.input(1)
    if isinstance(given, KnownValue):
        target = context.known_ints(node, 1)
    else:  # 1 leaves a dimension as it is
        w, rank = Writer(context, node), len(value.shape)
        count = given.shape[0]
        if not isinstance(count, int):
            raise node.unsupported("its result has an unknown number of dimensions")
        whole = [1] * max(count - rank, 0) + list(value.shape)[max(rank - count, 0) :]
        kept = known(whole, f"{node.outputs[0]}.kept")
        wide = w.cast(given, "int64")
        wide = w.where(w(op.equal, wide, 1), kept, wide)
        target = context.measured(node, wide, name=f"{node.outputs[0]}.shape")
    shape = context.broadcast_shape(node, value.shape, _positive(node, target))
    return context.broadcast_to(value, shape, node.outputs[0], node)


def _positive(node: Node, extents: Sequence[Expr]) -> Sequence[Expr]:
    for extent in extents:
        if isinstance(extent, int) and extent < 0:
            raise node.error(f"its shape has the negative dimension {extent}")
    return extents


def _fold_expand(
    context: Context, node: Node, arrays: Sequence[np.ndarray | None]
) -> np.ndarray | None:
    data = arrays[0]
    target = context.known_ints(node, 1)
    if data is None or not all(isinstance(extent, int) for extent in target):
        return None
    shape = context.broadcast_shape(node, data.shape, _positive(node, target))
    fixed = [extent for extent in shape if isinstance(extent, int)]
    if int(np.prod([float(extent) for extent in fixed])) > FOLD_LIMIT:
        return None
    return np.broadcast_to(data, fixed)


def _tile(context: Context, node: Node) -> Result:
    """[a, b] tiled by [m, n] is [1, a, 1, b] spread to [m, a, n, b] and joined."""
    value = node.input(0)
    repeats = _positive(node, context.known_ints(node, 1))
    if len(repeats) != value.rank:
        raise node.error(f"{len(repeats)} repeats for {value.rank} dimensions")
    split: list[Expr] = []
    spread: list[Expr] = []
    joined: list[Expr] = []
    for extent, times in zip(value.shape, repeats, strict=True):
        split += [1, extent]
        spread += [times, extent]
        joined.append(context.symbols.product([times, extent]))
    name = node.outputs[0]
    apart = context.emit(op.reshape(context.expr(value), tuple(split)), f"{name}.apart", split)
    wide = context.broadcast_to(apart, spread, f"{name}.spread", node)
    return context.emit(op.reshape(context.expr(wide), tuple(joined)), name, joined)


def _fold_tile(
    context: Context, node: Node, arrays: Sequence[np.ndarray | None]
) -> np.ndarray | None:
    data = arrays[0]
    repeats = context.known_ints(node, 1)
    fixed = [times for times in _positive(node, repeats) if isinstance(times, int)]
    if data is None or len(fixed) != len(repeats) or len(fixed) != data.ndim:
        return None
    if data.size * float(np.prod([float(times) for times in fixed])) > FOLD_LIMIT:
        return None
    return np.tile(data, fixed)


# -- Concat, Split -------------------------------------------------------------------------


def _concat(context: Context, node: Node) -> Result:
    values = node.all_inputs()
    node.same_dtype(*values)
    rank = values[0].rank
    axis = node.axis(node.integer("axis"), rank)
    shape = list(values[0].shape)
    for value in values[1:]:
        if value.rank != rank:
            raise node.error(f"its inputs have {rank} and {value.rank} dimensions")
        for other in range(rank):
            if other != axis:
                shape[other] = context.symbols.unify(
                    shape[other], value.shape[other], f"{node.label} joins along axis {axis}"
                )
    if len(values) == 1:
        return values[0]
    parts = []
    for value in values:
        wanted = [*shape[:axis], value.shape[axis], *shape[axis + 1 :]]
        parts.append(context.expr(context.cast_shape(value, wanted, node.label)))
    total: Expr = 0
    for value in values:
        total = total + value.shape[axis]
    shape[axis] = context.symbols.simplify(total)
    return context.emit(op.concat(parts, axis=axis), node.outputs[0], shape, node.label)


def _fold_concat(
    context: Context, node: Node, arrays: Sequence[np.ndarray | None]
) -> np.ndarray | None:
    given = [array for array in arrays if array is not None]
    if len(given) != len(arrays) or not given:
        return None
    node.same_dtype(*node.all_inputs())
    if len({array.ndim for array in given}) != 1:
        raise node.error("its inputs have different numbers of dimensions")
    axis = node.axis(node.integer("axis"), given[0].ndim)
    if any(array.dtype == object for array in given):
        given = [array.astype(object) for array in given]
    return np.concatenate(given, axis)


def _concat_interval(context: Context, node: Node) -> Interval | None:
    """The union; apart when single columns are joined along the last axis."""
    values = node.all_inputs()
    known = [context.interval(value) for value in values]
    intervals = [interval for interval in known if interval is not None]
    if len(intervals) != len(known):
        return None
    low, high = intervals[0].low, intervals[0].high
    for interval in intervals[1:]:
        low = context.symbols.minimum(low, interval.low)
        high = context.symbols.maximum(high, interval.high)
    last = node.axis(node.integer("axis"), values[0].rank) == values[0].rank - 1
    columns = last and all(same(value.shape[-1], 1) for value in values)
    return Interval(low, high, False, tuple(intervals) if columns else ())


def _split(context: Context, node: Node) -> Result:
    value = node.input(0)
    axis = node.axis(node.integer("axis", 0), value.rank)
    extent = value.shape[axis]
    sizes = _split_sizes(context, node, extent)
    if len(sizes) != len(node.outputs):
        raise node.error(f"{len(sizes)} parts for {len(node.outputs)} outputs")
    total: Expr = 0
    for size in sizes:
        total = total + size
    context.symbols.unify(extent, context.symbols.simplify(total), f"{node.label} splits it")
    results: list[Value] = []
    start: Expr = 0
    for size, name in zip(sizes, node.outputs, strict=True):
        end = context.symbols.simplify(start + size)
        results.append(_part(context, value, axis, start, end, name))
        start = end
    return results


def _part(context: Context, value: Value, axis: int, start: Expr, end: Expr, name: str) -> Value:
    if isinstance(value, KnownValue) and isinstance(start, int) and isinstance(end, int):
        cut = (slice(None),) * axis + (slice(start, end),)
        return KnownValue(name, value.dtype, value.data[cut])
    part = sliced(context, value, {axis: (start, context.symbols.simplify(end - start), 1)}, name)
    known = context.interval(value)
    if known is None or not isinstance(part, TensorValue):
        return part
    bounds = Interval(known.low, known.high)
    return TensorValue(part.name, part.dtype, part.shape, part.var, bounds)


def _split_sizes(context: Context, node: Node, extent: Expr) -> list[Expr]:
    if node.version < 13 and node.has("split"):
        return list(_positive(node, node.integers("split")))
    if node.version >= 13 and node.optional(1) is not None:
        return list(_positive(node, context.known_ints(node, 1)))
    count = (
        node.integer("num_outputs", len(node.outputs)) if node.version >= 18 else len(node.outputs)
    )
    if not 1 <= count <= len(node.outputs):
        raise node.error(f"num_outputs is {count}, it has {len(node.outputs)} outputs")
    if isinstance(extent, int):
        size = -(-extent // count)
        last = extent - size * (count - 1)
        if last < 0 or (node.version < 18 and last != size):
            raise node.error(f"{extent} elements cannot be split into {count} parts")
        return [size] * (count - 1) + [last]
    part = context.symbols.exact_quotient(extent, count)
    if part is None:
        raise node.unsupported(f"a split of {extent} elements into {count} parts may be uneven")
    return [part] * count


# -- blocks --------------------------------------------------------------------------------


def _blocks(context: Context, node: Node) -> Result:
    """DepthToSpace and SpaceToDepth: reshape, permute, reshape."""
    value = node.input(0)
    node.need_rank(value, 4, 4)
    n, c, h, w = value.shape
    block = node.integer("blocksize")
    if block < 1:
        raise node.error(f"blocksize is {block}")

    def by_block(extent: Expr, divisor: int) -> Expr:
        quotient = context.symbols.exact_quotient(extent, divisor)
        if quotient is None:
            raise node.error(f"a dimension of {extent} is not divisible by {divisor}")
        return quotient

    if node.op_type == "SpaceToDepth":
        rows, columns = by_block(h, block), by_block(w, block)
        split: list[Expr] = [n, c, rows, block, columns, block]
        mode = node.choice("mode", "DCR", ("DCR", "CRD"))
        order = [0, 3, 5, 1, 2, 4] if mode == "DCR" else [0, 1, 3, 5, 2, 4]
        target = [n, context.symbols.product([c, block * block]), rows, columns]
    else:
        mode = node.choice("mode", "DCR", ("DCR", "CRD"))
        depth = by_block(c, block * block)
        split = [n, block, block, depth, h, w] if mode == "DCR" else [n, depth, block, block, h, w]
        order = [0, 3, 4, 1, 5, 2] if mode == "DCR" else [0, 1, 4, 2, 5, 3]
        height = context.symbols.product([h, block])
        target = [n, depth, height, context.symbols.product([w, block])]
    name = node.outputs[0]
    apart = context.emit(op.reshape(context.expr(value), tuple(split)), f"{name}.split", split)
    moved = context.emit(op.permute_dims(apart.var, order), f"{name}.moved")
    return context.emit(op.reshape(moved.var, tuple(target)), name, target)


TABLE: Table = {
    ("", "Transpose", 1): Operator(_transpose, fold=_fold_transpose, moves="all"),
    ("", "Expand", 8): Operator(_expand, fold=_fold_expand, moves="all"),
    ("", "Tile", 6): Operator(_tile, fold=_fold_tile, moves="all"),
    ("", "Concat", 4): Operator(
        _concat, fold=_fold_concat, interval=_concat_interval, narrow="carries"
    ),
    ("", "Split", 2): Operator(_split, narrow="carries"),
    ("", "DepthToSpace", 1): Operator(_blocks),
    ("", "SpaceToDepth", 1): Operator(_blocks),
}
