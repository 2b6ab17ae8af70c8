"""What only moves elements: views, transposes, joins, cuts, repetition, padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphc.frontend.onnx.symbols import same
from graphc.frontend.onnx.values import Value
from graphc.frontend.torch_export.call import OPEN, Call, Result, Table
from graphc.ir import Expr

_MOST_PARTS = 64


def _view(call: Call) -> Result:
    return call.reshape(call.value("self"), call.shape)


def _expand(call: Call) -> Result:
    return call.expand(call.value("self"), call.shape)


def _permute(call: Call) -> Result:
    value = call.value("self")
    return call.transpose(value, [axis % value.rank for axis in call.all_fixed("dims")])


def _transpose(call: Call) -> Result:
    value = call.value("self")
    order = list(range(value.rank))
    if value.rank:
        a, b = call.axis("dim0", value.rank), call.axis("dim1", value.rank)
        order[a], order[b] = order[b], order[a]
    return call.transpose(value, order)


def _turn(call: Call) -> Result:
    value = call.value("self")
    return call.transpose(value, range(value.rank)[::-1])


def _movedim(call: Call) -> Result:
    value = call.value("self")
    sources = [axis % value.rank for axis in call.all_fixed("source")]
    targets = [axis % value.rank for axis in call.all_fixed("destination")]
    order: list[int] = [axis for axis in range(value.rank) if axis not in sources]
    for target, source in sorted(zip(targets, sources, strict=True)):
        order.insert(target, source)
    return call.transpose(value, order)


def _tensors(call: Call) -> list[Value]:
    """torch ignores an old-style empty tensor of one dimension when it joins."""
    given = [value for value in call.arguments["tensors"] if value is not None]
    rank = len(call.result.shape)
    kept = [value for value in given if value.rank == rank or not same(value.shape[0], 0)]
    return [call.part(f"part{n}").cast(value, call.dtype) for n, value in enumerate(kept)]


def _cat(call: Call) -> Result:
    return call.apply("Concat", _tensors(call), axis=call.axis("dim", len(call.result.shape)))


def _stack(call: Call) -> Result:
    values = [value for value in call.arguments["tensors"] if value is not None]
    rank = len(call.result.shape)
    axis = call.axis("dim", rank)
    tall = [
        call.part(f"part{n}").reshape(
            call.cast(value, call.dtype), [*value.shape[:axis], 1, *value.shape[axis:]]
        )
        for n, value in enumerate(values)
    ]
    return call.apply("Concat", tall, axis=axis)


def _slice(call: Call) -> Result:
    value = call.value("self")
    axis = call.axis("dim", value.rank)
    start, end = call.get("start", 0), call.get("end", OPEN)
    return call.slice(value, axis, start, end, call.fixed("step", 1))


def _select(call: Call) -> Result:
    value, index = call.value("self"), call.arguments["index"]
    axis = call.axis("dim", value.rank)
    if isinstance(index, int) and index == -1:
        one = call.part("one").slice(value, axis, -1, OPEN)
    else:
        one = call.part("one").slice(value, axis, index, index + 1)
    return call.reshape(one, call.shape)


def _narrow(call: Call) -> Result:
    value, start = call.value("self"), call.arguments["start"]
    return call.slice(value, call.axis("dim", value.rank), start, start + call.arguments["length"])


def _split(call: Call) -> Result:
    """In parts as large as torch says that they are."""
    value = call.value("self")
    axis = call.axis("dim", value.rank)
    parts: list[Value] = []
    start: Expr = 0
    for number, result in enumerate(call.result):
        end = call.context.symbols.simplify(start + call.expressions.dim(result.shape[axis]))
        parts.append(call.part(f"{number}").slice(value, axis, start, end))
        start = end
    return parts


def _unbind(call: Call) -> Result:
    value = call.value("self")
    axis = call.axis("dim", value.rank)
    rest = [*value.shape[:axis], *value.shape[axis + 1 :]]
    return [
        call.part(f"{number}").reshape(
            call.part(f"{number}.one").slice(value, axis, number, number + 1), rest
        )
        for number in range(len(call.result))
    ]


def _repeat(call: Call) -> Result:
    value, times = call.value("self"), list(call.arguments["repeats"])
    wide = [*[1] * (len(times) - value.rank), *value.shape]
    tall = call.part("tall").reshape(value, wide)
    if all(same(extent, 1) or same(count, 1) for extent, count in zip(wide, times, strict=True)):
        return call.expand(tall, call.shape)
    return call.apply("Tile", [tall, call.ints(times)])


def _repeat_interleave(call: Call) -> Result:
    """Each element `repeats` times in a row."""
    value, times = call.value("self"), call.fixed("repeats")
    if call.arguments.get("dim") is None:
        value = call.part("flat").reshape(value, [call.context.symbols.product(value.shape)])
    axis = call.axis("dim", value.rank) if call.arguments.get("dim") is not None else 0
    head, tail = value.shape[: axis + 1], value.shape[axis + 1 :]
    narrow = call.part("narrow").reshape(value, [*head, 1, *tail])
    return call.reshape(call.part("wide").expand(narrow, [*head, times, *tail]), call.shape)


def _unfold(call: Call) -> Result:
    """Windows of `size` elements, `step` apart, in a new last axis."""
    value, size, step = call.value("self"), call.fixed("size"), call.fixed("step")
    axis = call.axis("dimension", value.rank)
    if not 0 < size <= _MOST_PARTS:
        raise call.unsupported(f"windows of {size} elements; up to {_MOST_PARTS} are compiled")
    count = call.shape[axis]
    columns = []
    for place in range(size):
        end = call.context.symbols.simplify(place + (count - 1) * step + 1)
        column = call.part(f"{place}").slice(value, axis, place, end, step)
        columns.append(call.part(f"{place}.tall").reshape(column, [*column.shape, 1]))
    return call.apply("Concat", columns, axis=value.rank)


def _flip(call: Call) -> Result:
    value = call.value("self")
    for axis in sorted(axis % value.rank for axis in call.all_fixed("dims")):
        value = call.part(f"axis{axis}").slice(value, axis, -1, -OPEN, -1)
    return value


def _roll(call: Call) -> Result:
    """Along each axis what falls off the end comes in at the front."""
    value = call.value("self")
    shifts, axes = call.all_fixed("shifts"), call.all_fixed("dims")
    if not axes:
        raise call.unsupported("rolling all elements as one row is not compiled")
    for number, (shift, axis) in enumerate(zip(shifts, axes, strict=True)):
        axis, step = axis % value.rank, call.part(f"axis{number}")
        extent = value.shape[axis]
        shift = shift % extent if isinstance(extent, int) else shift
        if shift:
            front = step.part("front").slice(value, axis, -shift, OPEN)
            back = step.part("back").slice(value, axis, 0, -shift)
            value = step.apply("Concat", [front, back], axis=axis)
    return value


def _pad(mode: str | None = None) -> Callable[[Call], Result]:
    """torch counts axes from the last one, begin and end of each together."""

    def convert(call: Call) -> Result:
        value, pads = call.value("self"), list(_pads(call))
        kind = mode or call.get("mode", "constant")
        kinds = {"constant": "constant", "reflect": "reflect", "replicate": "edge",
                 "circular": "wrap"}  # fmt: skip
        begins: list[Expr] = [0] * value.rank
        ends: list[Expr] = [0] * value.rank
        for number in range(len(pads) // 2):
            begins[value.rank - 1 - number] = pads[2 * number]
            ends[value.rank - 1 - number] = pads[2 * number + 1]
        fill = call.arguments.get("value")
        inputs = [value, call.ints([*begins, *ends])]
        if kinds[kind] == "constant":
            inputs.append(call.scalar(0 if fill is None else fill, value.dtype))
        return call.apply("Pad", inputs, mode=kinds[kind])

    return convert


def _pads(call: Call) -> Sequence[Expr]:
    pads: Sequence[Expr] = call.arguments["pad" if "pad" in call.arguments else "padding"]
    return pads


_VIEWS = (
    "view.default", "reshape.default", "_unsafe_view.default", "flatten.using_ints",
    "unflatten.int", "unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims",
    "view_copy.default", "view_as.default", "reshape_as.default",
)  # fmt: skip

TABLE: Table = {
    **dict.fromkeys(_VIEWS, _view),
    "expand.default": _expand,
    "expand_as.default": _expand,
    "broadcast_to.default": _expand,
    "permute.default": _permute,
    "transpose.int": _transpose,
    "t.default": _turn,
    "numpy_T.default": _turn,
    "movedim.intlist": _movedim,
    "movedim.int": _movedim,
    "cat.default": _cat,
    "concat.default": _cat,
    "stack.default": _stack,
    "slice.Tensor": _slice,
    "select.int": _select,
    "narrow.default": _narrow,
    "split.Tensor": _split,
    "split.sizes": _split,
    "split_with_sizes.default": _split,
    "chunk.default": _split,
    "unbind.int": _unbind,
    "repeat.default": _repeat,
    "repeat_interleave.self_int": _repeat_interleave,
    "unfold.default": _unfold,
    "flip.default": _flip,
    "roll.default": _roll,
    "pad.default": _pad(),
    "constant_pad_nd.default": _pad("constant"),
    "reflection_pad1d.default": _pad("reflect"),
    "reflection_pad2d.default": _pad("reflect"),
    "replication_pad1d.default": _pad("replicate"),
    "replication_pad2d.default": _pad("replicate"),
}
