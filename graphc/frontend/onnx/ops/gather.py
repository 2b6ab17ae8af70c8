"""Gather, GatherElements, GatherND and OneHot; indices are proved or checked to be in range."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax
from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.table import Operator, Result, Table
from graphc.frontend.onnx.values import Interval, KnownValue, TensorValue, Value
from graphc.ir import Expr


def _gather(context: Context, node: Node) -> Result:
    value, indices = node.input(0), node.input(1)
    axis = node.axis(node.integer("axis", 0), value.rank)
    safe = context.indices(node, indices, value.shape[axis])
    shape = [*value.shape[:axis], *indices.shape, *value.shape[axis + 1 :]]
    call = op.take(context.expr(value), safe, axis=axis, mode="fast")
    return context.emit(call, node.outputs[0], shape, node.label)


def _fold_gather(
    context: Context, node: Node, arrays: Sequence[np.ndarray | None]
) -> np.ndarray | None:
    data, indices = arrays
    if data is None or indices is None or indices.dtype == object:
        return None
    axis = node.axis(node.integer("axis", 0), data.ndim)
    node.need_integer(node.input(1))
    if indices.size and not -data.shape[axis] <= indices.min() <= indices.max() < data.shape[axis]:
        raise node.error(
            f"indices {indices.min()} to {indices.max()} are out of range for an axis of "
            f"{data.shape[axis]} elements"
        )
    return np.asarray(np.take(data, indices, axis), data.dtype)


def _gather_elements(context: Context, node: Node) -> Result:
    """out[i, j] = data[index[i, j], j] along axis 0; index is nowhere larger than data."""
    value, indices = node.input(0), node.input(1)
    node.need_rank(indices, value.rank, value.rank)
    axis = node.axis(node.integer("axis", 0), value.rank)
    for other in range(value.rank):
        small, large = indices.shape[other], value.shape[other]
        if other != axis and not context.symbols.at_most(small, large):
            if context.symbols.at_most(large + 1, small):
                raise node.error(f"its indices have {small} elements where the data has {large}")
            context.symbols.unify(small, large, f"{node.label} indexes them alike")
    safe = context.indices(node, indices, value.shape[axis])
    call = op.gather_elements(context.expr(value), safe, axis)
    return context.emit(call, node.outputs[0], indices.shape, node.label)


def _fold_gather_elements(
    context: Context, node: Node, arrays: Sequence[np.ndarray | None]
) -> np.ndarray | None:
    data, indices = arrays
    if data is None or indices is None or indices.dtype == object or data.ndim != indices.ndim:
        return None
    return np.take_along_axis(data, indices, node.axis(node.integer("axis", 0), data.ndim))


def _gather_nd(context: Context, node: Node) -> Result:
    """Each row of indices addresses the leading axes after the batch axes."""
    value, indices = node.input(0), node.input(1)
    node.need_rank(indices, 1)
    node.need_rank(value, 1)
    batch = node.integer("batch_dims", 0)
    depth = indices.shape[-1]
    if not isinstance(depth, int):
        raise node.unsupported("the number of indexed axes depends on the inputs")
    if not 0 <= batch < min(value.rank, indices.rank) or not 1 <= depth <= value.rank - batch:
        raise node.error(
            f"batch_dims {batch} and {depth} indices do not fit {value.rank} dimensions"
        )
    for axis in range(batch):
        context.symbols.unify(value.shape[axis], indices.shape[axis], f"{node.label} batches them")
    shape = [*indices.shape[:-1], *value.shape[batch + depth :]]
    safe = safe_rows(context, node, indices, value.shape[batch : batch + depth])
    call = op.gather_nd(context.expr(value), safe, batch)
    return context.emit(call, node.outputs[0], shape, node.label)


def safe_rows(context: Context, node: Node, indices: Value, extents: Sequence[Expr]) -> relax.Expr:
    """Every column of the indices in range for its own axis."""
    if indices.dtype != "int64":
        raise node.error(f"indices must be int64, these are {indices.dtype}")
    if _all_proved(context, indices, extents):
        return context.expr(indices)
    known = context.interval(indices)
    columns = []
    tensor = context.tensor(indices)
    rank = indices.rank
    for number, extent in enumerate(extents):
        one = op.strided_slice(
            tensor.var, [rank - 1], [number], [number + 1], [1], assume_inbound=True
        )
        column = context.emit(one, f"{tensor.name}.{number}", [*indices.shape[:-1], 1])
        bounds = known.parts[number] if known and known.parts else known
        part = TensorValue(column.name, column.dtype, column.shape, column.var, bounds)
        columns.append(context.indices(node, part, extent))
    return context.emit(op.concat(columns, axis=rank - 1), f"{tensor.name}.safe", indices.shape).var


def _all_proved(context: Context, indices: Value, extents: Sequence[Expr]) -> bool:
    known = context.interval(indices)
    if known is None:
        return False
    parts = known.parts or (known,) * len(extents)
    return len(parts) == len(extents) and all(
        context.symbols.at_most(0, part.low)
        and context.symbols.at_most(part.high, context.symbols.simplify(extent - 1))
        for part, extent in zip(parts, extents, strict=True)
    )


def _one_hot(context: Context, node: Node) -> Result:
    """on where the index equals the position along a new axis, off elsewhere."""
    indices, values = node.input(0), node.input(2)
    node.need_number(indices)
    depth = _depth(context, node)
    if values.shape != (2,):
        raise node.error(f"its values have shape {list(values.shape)}, they must be [off, on]")
    axis = node.axis(node.integer("axis", -1), indices.rank + 1)
    name = node.outputs[0]
    shape = [*indices.shape[:axis], depth, *indices.shape[axis:]]
    at = context.emit(op.astype(context.expr(indices), "int64"), f"{name}.index").var
    size = context.constant(depth, "int64")
    below = context.emit(op.less(at, context.constant(0, "int64")), f"{name}.negative").var
    moved = context.emit(op.add(at, size), f"{name}.moved").var
    at = context.emit(op.where(below, moved, at), f"{name}.wrapped").var
    at = context.emit(op.expand_dims(at, axis), f"{name}.spread").var
    along = [1] * len(shape)
    along[axis] = depth
    row = context.expr(KnownValue(f"{name}.range", "int64", np.arange(depth).reshape(along)))
    hit = context.emit(op.equal(at, row), f"{name}.hit", shape).var
    both = context.expr(values)
    off, on = (
        context.emit(
            op.reshape(
                context.emit(
                    op.strided_slice(both, [0], [k], [k + 1], [1], assume_inbound=True),
                    f"{name}.value",
                ).var,
                (),
            ),
            f"{name}.scalar",
            (),
        ).var
        for k in (0, 1)
    )
    return context.emit(op.where(hit, on, off), name, shape)


def _depth(context: Context, node: Node) -> int:
    value = node.input(1)
    if not isinstance(value, KnownValue) or value.symbolic or value.data.size != 1:
        raise node.unsupported("a depth that depends on the inputs is not compiled")
    depth = int(value.data.reshape(()))
    if not 0 < depth < 2**24:
        raise node.error(f"depth is {depth}")
    return depth


def _data_interval(context: Context, node: Node) -> Interval | None:
    known = context.interval(node.input(0))
    return Interval(known.low, known.high) if known else None


TABLE: Table = {
    ("", "Gather", 1): Operator(
        _gather, fold=_fold_gather, interval=_data_interval, narrow="carries"
    ),
    ("", "GatherElements", 11): Operator(
        _gather_elements, fold=_fold_gather_elements, interval=_data_interval
    ),
    ("", "GatherND", 11): Operator(_gather_nd, interval=_data_interval),
    ("", "OneHot", 9): Operator(_one_hot),
}
