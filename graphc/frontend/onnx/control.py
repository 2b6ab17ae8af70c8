"""If, Loop and Scan whose course depends on the values of inputs: regions that are run at points.

A carried value's dimension that the body changes becomes a dimension of the loop's own, and the
body is imported again with it. Slices of scan outputs may have any shape that all iterations share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import GraphProto
from tvm import relax, tirx

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.extents import scalar, variables
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.points import bound, captured, emit_point, measure
from graphc.frontend.onnx.regions import BranchPoint, LoopPoint, Region
from graphc.frontend.onnx.values import KnownValue, TensorValue, Value
from graphc.frontend.onnx.writer import Writer
from graphc.ir import Expr

Run = Callable[[GraphProto, Mapping[str, "Value | None"], str], "list[Value]"]
"""Converts a subgraph with its inputs given, its nodes named with a prefix; its outputs."""

Body = Callable[[Expr, Sequence[Value]], "list[Value]"]
"""Converts a body for the number of the iteration and the carried values: its results."""


def branch(
    context: Context, node: Node, graphs: tuple[GraphProto, GraphProto], run: Run
) -> list[Value]:
    """The results of an If whose condition is a value of the run."""
    condition = bound(context, _condition(context, node, node.input(0)))
    before = frozenset(context.symbols.variables)
    regions: list[Region] = []
    results: list[list[TensorValue]] = []
    for graph, side in zip(graphs, ("then", "else"), strict=True):
        with context.region() as region:
            values = [bound(context, value) for value in run(graph, {}, f"{side}: ")]
            region.results = [value.var for value in values]
        regions.append(region)
        results.append(values)
    if len(results[0]) != len(results[1]) or len(results[0]) < len(node.outputs):
        raise node.error(
            f"its branches make {len(results[0])} and {len(results[1])} values, "
            f"it has {len(node.outputs)} outputs"
        )
    late = _Late(context, before)
    outputs = []
    for number, (left, right) in enumerate(zip(*results, strict=True)):
        if left.dtype != right.dtype:
            raise node.error(f"its branches make {left.dtype} and {right.dtype}")
        if left.rank != right.rank:
            raise node.unsupported(
                f"its branches make values of {left.rank} and {right.rank} dimensions"
            )
        name = node.outputs[number] if number < len(node.outputs) else f"unused.{number}"
        shape = [
            late.common(f"{name}.{axis}", pair)
            for axis, pair in enumerate(zip(left.shape, right.shape, strict=True))
        ]
        outputs.append((name, left.dtype, shape))
    point = BranchPoint(
        regions=(regions[0], regions[1]),
        dims=tuple(late.dims),
        extents=(tuple(e[0] for e in late.extents), tuple(e[1] for e in late.extents)),
        where=node.label,
    )
    inner = captured(context, regions)
    made = emit_point(context, point, [condition.var, *inner], outputs)
    narrow = [value.narrow for value in results[0]]
    return [replace(value, narrow=kind) for value, kind in zip(made, narrow, strict=True)]


class _Late:
    """Dimensions made where results have different shapes or shapes that are not known outside."""

    def __init__(self, context: Context, known: frozenset[str]) -> None:
        self._context, self._known = context, known
        self.dims: list[tirx.Var] = []
        self.extents: list[tuple[Expr, ...]] = []

    def outside(self, extent: Expr) -> bool:
        """Whether an expression has a meaning outside the regions."""
        return all(var.name in self._known for var in variables([extent]))

    def common(self, name: str, extents: Sequence[Expr]) -> Expr:
        """The dimension that all of `extents` are, or a new one."""
        equal = all(self._context.symbols.equal(extents[0], other) for other in extents[1:])
        if equal and self.outside(extents[0]):
            return extents[0]
        dim = self._context.symbols.fresh(name)
        self.dims.append(dim)
        self.extents.append(tuple(extents))
        return dim


@dataclass(frozen=True)
class Course:
    """How long a loop runs: at most `limit` iterations, and while `condition`, if there is one."""

    limit: Expr
    condition: Value | None


@dataclass
class _Try:
    """One import of a body."""

    region: Region
    step: tirx.Var
    inner: list[list[Expr]]
    results: list[TensorValue]
    conditional: bool


def trips(context: Context, node: Node, value: Value | None) -> Expr:
    """A trip count as an expression that is not negative; unlimited when there is none."""
    if value is None:
        return int(np.iinfo("int64").max)
    if value.dtype not in ("int64", "int32") or any(extent != 1 for extent in value.shape):
        raise node.error("its trip count must be one integer")
    if isinstance(value, KnownValue):
        count = value.data.reshape(()).item()
        return max(count, 0) if isinstance(count, int) else context.symbols.maximum(count, 0)
    w = Writer(context, node)
    whole = w.cast(value, "int64")
    above = w(lambda x: relax.op.maximum(x, context.constant(0, "int64")), whole)
    (count,) = measure(
        context, above, [f"{node.outputs[0] or 'loop'}.limit"], [(0, None)], node.label
    )
    return count


def loop(
    context: Context, node: Node, course: Course, initial: Sequence[Value], stacked: int, body: Body
) -> list[Value]:
    """The last carried values and the stacked slices.

    The body's results are its condition, the next carried values and the slices.
    """
    states = [bound(context, value) for value in initial]
    condition = course.condition
    if condition is not None:
        condition = _condition(context, node, condition)
    before = frozenset(context.symbols.variables)
    loose: set[tuple[int, int]] = set()  # dimensions of carried values that the body changes
    while True:
        made = _attempt(context, node, condition, states, loose, body)
        changed = _changed(context, node, made, states, before)
        if not changed - loose:
            break
        loose |= changed
    return _emit(context, node, course.limit, condition, states, stacked, made, loose, before)


def _attempt(
    context: Context,
    node: Node,
    condition: Value | None,
    states: Sequence[TensorValue],
    loose: set[tuple[int, int]],
    body: Body,
) -> _Try:
    name = next(filter(None, node.outputs), "loop")
    with context.region() as region:
        step = context.symbols.fresh(f"{name}.step")
        inner = [
            [
                context.symbols.fresh(f"{name}.carried{number}.{axis}")
                if (number, axis) in loose
                else extent
                for axis, extent in enumerate(state.shape)
            ]
            for number, state in enumerate(states)
        ]
        region.params = [
            relax.Var(state.name or "carried", relax.TensorType(tuple(shape), state.dtype))
            for state, shape in zip(states, inner, strict=True)
        ]
        given = [
            TensorValue(state.name, state.dtype, tuple(shape), var, narrow=state.narrow)
            for state, shape, var in zip(states, inner, region.params, strict=True)
        ]
        going, *others = body(step, given)
        conditional = condition is not None or not _is_true(going)
        wanted = [_condition(context, node, going), *others] if conditional else others
        results = [bound(context, value) for value in wanted]
        region.results = [value.var for value in results]
    return _Try(region, step, inner, results[1:] if conditional else results, conditional)


def _changed(
    context: Context,
    node: Node,
    made: _Try,
    states: Sequence[TensorValue],
    before: frozenset[str],
) -> set[tuple[int, int]]:
    """The dimensions of carried values that an iteration leaves different."""
    changed = set()
    late = _Late(context, before)
    for number, (state, inner) in enumerate(zip(states, made.inner, strict=True)):
        result = made.results[number]
        if result.dtype != state.dtype or result.rank != state.rank:
            raise node.unsupported(
                f"carried value {number} becomes {result.dtype} of {result.rank} dimensions from "
                f"{state.dtype} of {state.rank}"
            )
        for axis, (extent, start) in enumerate(zip(result.shape, inner, strict=True)):
            if not context.symbols.equal(extent, start) or not late.outside(start):
                changed.add((number, axis))
    return changed


def _emit(
    context: Context,
    node: Node,
    limit: Expr,
    condition: Value | None,
    states: Sequence[TensorValue],
    stacked: int,
    made: _Try,
    loose: set[tuple[int, int]],
    before: frozenset[str],
) -> list[Value]:
    symbols, name = context.symbols, next(filter(None, node.outputs), "loop")
    order = sorted(loose)
    late = _Late(context, before)
    outer: dict[tuple[int, int], tirx.Var] = {
        place: symbols.fresh(f"{name}.last{place[0]}.{place[1]}") for place in order
    }
    dims, extents = [*outer.values()], [made.inner[number][axis] for number, axis in order]
    count = limit
    if made.conditional or (not isinstance(limit, int) and not late.outside(limit)):
        upper = limit if isinstance(limit, int) and limit < 2**47 else None
        count = symbols.fresh(f"{name}.trips", 0, upper)
        dims.append(count)
        extents.append(made.step)
    outputs: list[tuple[str, str, Sequence[Expr]]] = []
    for number, state in enumerate(states):
        shape = [outer.get((number, axis), extent) for axis, extent in enumerate(state.shape)]
        outputs.append((_output(node, number), state.dtype, shape))
    for number, value in enumerate(made.results[len(states) :], len(states)):
        label = _output(node, number)
        shape = [late.common(f"{label}.{axis}", [e]) for axis, e in enumerate(value.shape)]
        outputs.append((label, value.dtype, [count, *shape]))
    point = LoopPoint(
        limit=limit,
        conditional=made.conditional,
        step=made.step,
        inner_dims=tuple(made.inner[number][axis] for number, axis in order),
        initial_extents=tuple(states[number].shape[axis] for number, axis in order),
        next_extents=tuple(made.results[number].shape[axis] for number, axis in order),
        region=made.region,
        observed=tuple((dim, e[0]) for dim, e in zip(late.dims, late.extents, strict=True)),
        stacked=stacked,
        dims=tuple(dims),
        outer_extents=tuple(extents),
        where=node.label,
    )
    start = []
    if made.conditional:
        start = [bound(context, condition or context.scalar(True, "bool")).var]
    args = [*(state.var for state in states), *start, *captured(context, [made.region])]
    values = emit_point(context, point, args, outputs)
    kinds = [value.narrow for value in made.results]
    return [replace(value, narrow=kind) for value, kind in zip(values, kinds, strict=True)]


def _output(node: Node, number: int) -> str:
    return (node.outputs[number] if number < len(node.outputs) else "") or f"unused.{number}"


def _condition(context: Context, node: Node, value: Value) -> Value:
    if value.dtype != "bool" or any(extent != 1 for extent in value.shape):
        raise node.error("its condition must be one boolean")
    return context.reshape(value, (), f"{value.name}.truth")


def _is_true(value: Value) -> bool:
    return isinstance(value, KnownValue) and not value.symbolic and bool(value.data.all())


def step_number(step: Expr, name: str) -> KnownValue:
    """The number of the iteration as a value."""
    return replace(scalar(step), name=name)
