"""Reading and writing at indices: embedding, gather, advanced indexing, scatter."""

from __future__ import annotations

from graphc.frontend.onnx.values import KnownValue, TensorValue, Value
from graphc.frontend.torch_export.call import Call, Result, Table
from graphc.ir import Expr


def _embedding(call: Call) -> Result:
    return call.apply("Gather", [call.value("weight"), call.value("indices")], axis=0)


def _index_select(call: Call) -> Result:
    value = call.value("self")
    axis = call.axis("dim", value.rank)
    return call.apply("Gather", [value, call.value("index")], axis=axis)


def _gather(call: Call) -> Result:
    value = call.value("self")
    axis = call.axis("dim", value.rank)
    return call.apply("GatherElements", [value, call.value("index")], axis=axis)


def _index(call: Call) -> Result:
    """value[i, None, j]: the indexed axes go to the front, and back if they were neighbours."""
    value, indices = call.value("self"), _tensor_indices(call)
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    given = [index for index in indices if index is not None]
    if len(axes) == 1:
        return _index_one(call, value, axes[0], given[0])
    order = [*axes, *(axis for axis in range(value.rank) if axis not in axes)]
    moved = call.part("moved").transpose(value, order)
    rows = _rows(call, given)
    made = call.part("rows").apply("GatherND", [moved, rows])
    neighbours = axes == list(range(axes[0], axes[0] + len(axes)))
    if not neighbours or axes[0] == 0:
        return made
    depth, before = rows.rank - 1, axes[0]
    back = [*range(depth, depth + before), *range(depth), *range(depth + before, made.rank)]
    return call.transpose(made, back)


def _index_one(call: Call, value: Value, axis: int, index: Value) -> Result:
    return call.apply("Gather", [value, index], axis=axis)


def _tensor_indices(call: Call) -> list[Value | None]:
    """Integers; torch drops what it could not tell apart from a boolean mask before this."""
    indices: list[Value | None] = []
    for index in call.arguments["indices"]:
        if index is not None and not isinstance(index, (TensorValue, KnownValue)):
            raise call.unsupported(f"the index {index!r} is not a tensor")
        if index is not None and index.dtype == "bool":
            raise call.unsupported(
                "a boolean mask chooses elements, so that the shape depends on data: use "
                "torch.where, or multiply by the mask"
            )
        indices.append(None if index is None else call.part("index").cast(index, "int64"))
    return indices


def _rows(call: Call, indices: list[Value]) -> Value:
    """The indices side by side: [..., number of indexed axes]."""
    shape: tuple[Expr, ...] = ()
    rank = max(index.rank for index in indices)
    extents: list[Expr] = []
    for axis in range(-rank, 0):
        sizes = [index.shape[axis] for index in indices if index.rank >= -axis]
        extents.append(
            next((size for size in sizes if not (isinstance(size, int) and size == 1)), 1)
        )
    shape = tuple(extents)
    columns = [
        call.part(f"column{n}").reshape(call.part(f"spread{n}").expand(index, shape), [*shape, 1])
        for n, index in enumerate(indices)
    ]
    return call.part("places").apply("Concat", columns, axis=rank)


def _scatter(call: Call) -> Result:
    """A copy of self with elements replaced along one axis."""
    value, index = call.value("self"), call.value("index")
    if index.rank != value.rank:
        raise call.unsupported("an index of another rank")
    axis = call.axis("dim", value.rank)
    source = call.arguments.get("src")
    updates = (
        call.cast(call.value("src"), value.dtype)
        if source is not None
        else call.part("value").expand(call.operand("value", value.dtype), index.shape)
    )
    return call.apply("ScatterElements", [value, index, updates], axis=axis)


def _slice_scatter(call: Call) -> Result:
    """A copy of self with a stretch along one axis replaced."""
    value, source = call.value("self"), call.cast(call.value("src"), call.dtype)
    axis = call.axis("dim", value.rank)
    start, step = call.get("start", 0), call.fixed("step", 1)
    if step != 1 or not call.context.symbols.at_most(0, start):
        raise call.unsupported("writing to a stretch with a step, or counted from the end")
    length, extent = source.shape[axis], value.shape[axis]
    end = call.context.symbols.simplify(start + length)
    parts = [
        call.part("before").slice(value, axis, 0, start),
        call.part("inside").reshape(source, source.shape),
        call.part("after").slice(value, axis, end, extent),
    ]
    kept = [part for part in parts if not (isinstance(part.shape[axis], int) and
            part.shape[axis] == 0)]  # fmt: skip
    return kept[0] if len(kept) == 1 else call.apply("Concat", kept, axis=axis)


def _select_scatter(call: Call) -> Result:
    """A copy of self with one position along an axis replaced."""
    value, index = call.value("self"), call.arguments["index"]
    axis = call.axis("dim", value.rank)
    extent = value.shape[axis]
    if isinstance(index, int) and index < 0:
        index = call.context.symbols.simplify(extent + index)
    shape = [*value.shape[:axis], 1, *value.shape[axis + 1 :]]
    row = call.part("row").reshape(call.cast(call.value("src"), call.dtype), shape)
    parts = [
        call.part("before").slice(value, axis, 0, index),
        row,
        call.part("after").slice(value, axis, call.context.symbols.simplify(index + 1), extent),
    ]
    kept = [part for part in parts if not (isinstance(part.shape[axis], int) and
            part.shape[axis] == 0)]  # fmt: skip
    return kept[0] if len(kept) == 1 else call.apply("Concat", kept, axis=axis)


TABLE: Table = {
    "embedding.default": _embedding,
    "index_select.default": _index_select,
    "gather.default": _gather,
    "index.Tensor": _index,
    "scatter.src": _scatter,
    "scatter.value": _scatter,
    "slice_scatter.default": _slice_scatter,
    "select_scatter.default": _select_scatter,
}
