"""If, Loop and Scan: a branch chosen and iterations written out where the course is known.

What depends on the values of inputs, or takes too many iterations, is control flow of the compiled
model (control.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import GraphProto
from tvm.relax import op

from graphc.frontend.onnx import control
from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.control import Course, Run
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.ops.slice import sliced
from graphc.frontend.onnx.values import KnownValue, Value
from graphc.frontend.onnx.writer import Writer
from graphc.ir import Expr

OPERATORS = frozenset({("If", 1), ("Loop", 1), ("Scan", 9)})
"""Operators of ONNX's own domain and the first versions that are read here."""

MOST_ITERATIONS = 256


def reads(op_type: str, version: int) -> bool:
    """Whether this operator of ONNX's own domain is read here."""
    return any(op_type == name and version >= since for name, since in OPERATORS)


def unroll(context: Context, node: Node, run: Run) -> list[Value]:
    """The results of an If, a Loop or a Scan."""
    if node.op_type == "If":
        return _branch(context, node, run)
    return _loop(context, node, run) if node.op_type == "Loop" else _scan(context, node, run)


def _graph(node: Node, name: str) -> GraphProto:
    graph = node.attributes.get(name)
    if not isinstance(graph, GraphProto):
        raise node.error(f"attribute {name} must be a graph")
    return graph


def _branch(context: Context, node: Node, run: Run) -> list[Value]:
    condition = node.input(0)
    graphs = _graph(node, "then_branch"), _graph(node, "else_branch")
    if not _is_known(condition):
        return control.branch(context, node, graphs, run)
    results = run(graphs[0] if _truth(node, condition, "its condition") else graphs[1], {}, "")
    if len(results) < len(node.outputs):
        raise node.error(f"its branch makes {len(results)} values, not {len(node.outputs)}")
    return results


def _is_known(value: Value | None) -> bool:
    return isinstance(value, KnownValue) and not value.symbolic


def _truth(node: Node, value: Value, what: str) -> bool:
    if not isinstance(value, KnownValue) or value.symbolic:
        raise node.unsupported(f"{what} depends on the values of the inputs")
    if value.data.size != 1:
        raise node.error(f"{what} has {value.data.size} elements, it must have one")
    return bool(value.data.reshape(()))


def _loop(context: Context, node: Node, run: Run) -> list[Value]:
    """Iterations until the count or a known condition ends them; the values of each are stacked."""
    body = _graph(node, "body")
    limit, given = node.optional(0), node.optional(1)
    states = [node.input(index) for index in range(2, len(node.inputs))]
    stacked = len(body.output) - 1 - len(states)
    if len(body.input) != 2 + len(states) or stacked < 0:
        raise node.error(f"its body does not fit {len(states)} values carried along")
    names = [info.name for info in body.input]

    def iteration(step: Expr, running: Value, carried: Sequence[Value], at: str) -> list[Value]:
        number = control.step_number(step, f"{node.outputs[0]}.step")
        return run(body, dict(zip(names, [number, running, *carried], strict=True)), at)

    if not _is_written_out(context, limit, given, states, iteration):
        course = Course(control.trips(context, node, limit), given)
        going: Value = KnownValue("", "bool", np.array(True))
        return control.loop(
            context, node, course, states, stacked,
            lambda step, carried: iteration(step, going, carried, ""),
        )  # fmt: skip
    count = None if limit is None else _count(limit)
    running: Value = given or KnownValue("", "bool", np.array(True))
    parts: list[list[Value]] = [[] for _ in range(stacked)]
    step = 0
    while (count is None or step < count) and _truth(node, running, "its condition"):
        if step >= MOST_ITERATIONS:
            raise node.unsupported(f"more than {MOST_ITERATIONS} iterations are not written out")
        results = iteration(step, running, states, f"{step}: ")
        # A condition that nobody reads need not be known.
        running = results[0] if count is None or step + 1 < count else running
        states = results[1 : 1 + len(states)]
        for part, value in zip(parts, results[1 + len(states) :], strict=True):
            part.append(value)
        step += 1
    return [*states, *(_stack(context, node, part, 0) for part in parts)]


def _count(limit: Value) -> int | None:
    """A trip count that is known."""
    if not isinstance(limit, KnownValue) or limit.data.size != 1:
        return None
    count = limit.data.reshape(()).item()
    return count if isinstance(count, int) else None


def _is_written_out(
    context: Context,
    limit: Value | None,
    given: Value | None,
    states: Sequence[Value],
    iteration: Callable[[Expr, Value, Sequence[Value], str], list[Value]],
) -> bool:
    """Whether a loop's course is known: its count, and the condition after the first iteration."""
    count = None if limit is None else _count(limit)
    if (given is not None and not _is_known(given)) or (limit is not None and count is None):
        return False
    if count is not None and not 0 < count <= MOST_ITERATIONS:
        return False
    running = given or KnownValue("", "bool", np.array(True))
    if not isinstance(running, KnownValue) or not running.data.all():
        return False
    with context.region():  # an import for the condition's sake
        return _is_known(iteration(0, running, states, "first: ")[0])


def _scan(context: Context, node: Node, run: Run) -> list[Value]:
    """One iteration for each slice along the scanned axes."""
    body, count = _graph(node, "body"), node.integer("num_scan_inputs")
    carried = len(node.inputs) - count
    if count < 1 or carried < 0 or len(body.input) != len(node.inputs):
        raise node.error(f"{count} scanned inputs do not fit {len(node.inputs)} inputs")
    stacked = len(body.output) - carried
    if stacked < 0:
        raise node.error("its body makes fewer values than are carried along")
    states: list[Value] = [node.input(index) for index in range(carried)]
    scanned = [node.input(index) for index in range(carried, len(node.inputs))]
    axes = [
        node.axis(axis, value.rank)
        for axis, value in zip(
            _list(node, "scan_input_axes", count), scanned, strict=True
        )
    ]  # fmt: skip
    backwards = _list(node, "scan_input_directions", count)
    length = scanned[0].shape[axes[0]]
    for value, axis in zip(scanned, axes, strict=True):
        length = context.symbols.unify(length, value.shape[axis], f"{node.label} scans together")
    names = [info.name for info in body.input]

    def iteration(step: Expr, carried: Sequence[Value], at: str) -> list[Value]:
        slices = [
            _slice(context, node, value, axis, length - 1 - step if turned else step)
            for value, axis, turned in zip(scanned, axes, backwards, strict=True)
        ]
        return run(body, dict(zip(names, [*carried, *slices], strict=True)), at)

    if not isinstance(length, int) or not 1 <= length <= MOST_ITERATIONS:
        going: Value = KnownValue("", "bool", np.array(True))
        results = control.loop(
            context, node, Course(length, None), states, stacked,
            lambda step, values: [going, *iteration(step, values, "")],
        )  # fmt: skip
        return [*results[:carried], *_arranged(context, node, results[carried:])]
    parts: list[list[Value]] = [[] for _ in range(stacked)]
    for step in range(length):
        results = iteration(step, states, f"{step}: ")
        states = results[:carried]
        for part, value in zip(parts, results[carried:], strict=True):
            part.append(value)
    results = []
    for part, axis, turned in zip(
        parts, _list(node, "scan_output_axes", stacked),
        _list(node, "scan_output_directions", stacked), strict=True,
    ):  # fmt: skip
        ordered = part[::-1] if turned else part
        results.append(_stack(context, node, ordered, node.axis(axis, part[0].rank + 1)))
    return [*states, *results]


def _arranged(context: Context, node: Node, stacks: Sequence[Value]) -> list[Value]:
    """Scan outputs stacked along axis 0 in order, as their axes and directions say."""
    w, results = Writer(context, node), []
    for stack, axis, turned in zip(
        stacks, _list(node, "scan_output_axes", len(stacks)),
        _list(node, "scan_output_directions", len(stacks)), strict=True,
    ):  # fmt: skip
        value = w(lambda x: op.flip(x, 0), stack) if turned else stack
        place = node.axis(axis, value.rank)
        order = [*range(1, place + 1), 0, *range(place + 1, value.rank)]
        results.append(w.transpose(value, order) if place else value)
    return results


def _list(node: Node, name: str, count: int) -> Sequence[int]:
    values = node.integers(name, (0,) * count)
    if len(values) != count:
        raise node.error(f"{name} has {len(values)} numbers, not {count}")
    return values


def _slice(context: Context, node: Node, value: Value, axis: int, at: Expr) -> Value:
    name = f"{value.name}.{at}"
    shape = [*value.shape[:axis], *value.shape[axis + 1 :]]
    if isinstance(value, KnownValue) and not value.symbolic and isinstance(at, int):
        return KnownValue(name, value.dtype, np.take(value.data, at, axis))
    cut = sliced(context, value, {axis: (at, 1, 1)}, f"{name}.cut")
    return context.reshape(cut, shape, name)


def _stack(context: Context, node: Node, parts: Sequence[Value], axis: int) -> Value:
    if not parts:
        raise node.unsupported("a loop without iterations makes values of unknown shape")
    w = Writer(context, node)
    shape = [*parts[0].shape[:axis], 1, *parts[0].shape[axis:]]
    if len(parts) == 1:
        return w.reshape(parts[0], shape)
    apart = [w(lambda x: op.reshape(x, tuple(shape)), part) for part in parts]
    return w.concat(apart, axis)
