"""Whether a kernel written as loops keeps the entries along one axis of its tensors apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tvm import tirx
from tvm.ir import PrimType, TensorLoad

from graphc.codegen.rewrite import walk


def keeps_apart(kernel: tirx.PrimFunc, axes: Sequence[int | None]) -> bool:
    """Whether every loop nest reads and writes, on an axis of each tensor, at one loop variable.

    `axes` has an entry for every tensor parameter in order, None for one without the axis.
    """
    buffers = [param for param in kernel.params if not isinstance(param.ty, PrimType)]
    if len(buffers) != len(axes):
        return False
    lanes = {buffer.name: axis for buffer, axis in zip(buffers, axes, strict=True)}
    return all(_one_variable(nest, lanes) for nest in _nests(kernel.body))


def _nests(body: Any) -> Iterator[Any]:
    """The statements of a kernel one after the other."""
    while hasattr(body, "block"):
        body = body.block.body
    if isinstance(body, tirx.SeqStmt):
        for part in body.seq:
            yield from _nests(part)
    else:
        yield body


def _one_variable(nest: Any, lanes: dict[str, int | None]) -> bool:
    places: list[Any] = []
    homes: list[tuple[Any, ...]] = []  # the loops around each buffer of the nest's own
    pending: list[tuple[Any, tuple[Any, ...]]] = [(nest, ())]
    loops: list[Any] = []
    while pending:
        node, around = pending.pop()
        if isinstance(node, tirx.For):
            loops.append(node.loop_var)
            pending.append((node.body, (*around, node.loop_var)))
        elif isinstance(node, tirx.SeqStmt):
            pending.extend((part, around) for part in node.seq)
        elif isinstance(node, tirx.While):
            pending.append((node.body, around))
            places += _places(node.condition, lanes)
        elif isinstance(node, tirx.IfThenElse):
            branches = [node.then_case, node.else_case]
            pending.extend((branch, around) for branch in branches if branch is not None)
            places += _places(node.condition, lanes)
        elif isinstance(node, tirx.BufferStore):
            axis = lanes.get(node.buffer.name)
            places += [] if axis is None else [node.indices[axis]]
            for part in (node.value, *node.indices):
                places += _places(part, lanes)
        elif isinstance(node, tirx.AllocBuffer):
            homes.append(around)
        else:
            return False
    if not places:
        return True
    first = places[0]
    # A buffer from outside the loop over the tokens would carry something from one to the next.
    is_own = all(any(first.same_as(variable) for variable in around) for around in homes)
    is_loop = any(first.same_as(variable) for variable in loops)
    return is_own and is_loop and all(place.same_as(first) for place in places)


def _places(expr: Any, lanes: dict[str, int | None]) -> list[Any]:
    """The indices on the lanes of the tensors that an expression reads."""
    return [
        node.indices[axis]
        for node in walk(expr)
        if isinstance(node, TensorLoad) and (axis := lanes.get(node.source.name)) is not None
    ]
