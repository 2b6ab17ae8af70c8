"""If, Loop and Scan whose course is known while importing: a branch chosen, iterations written out.

What depends on the values of inputs is refused, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import GraphProto
from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.ops.slice import sliced
from graphc.frontend.onnx.values import KnownValue, Value
from graphc.frontend.onnx.writer import Writer

OPERATORS = frozenset({("If", 1), ("Loop", 1), ("Scan", 9)})
"""Operators of ONNX's own domain and the first versions that are read here."""

MOST_ITERATIONS = 256

Run = Callable[[GraphProto, Mapping[str, "Value | None"], str], "list[Value]"]
"""Converts a subgraph with its inputs given, its nodes named with a prefix; its outputs."""


def reads(op_type: str, version: int) -> bool:
    """Whether this operator of ONNX's own domain is read here."""
    return any(op_type == name and version >= since for name, since in OPERATORS)


def unroll(context: Context, node: Node, run: Run) -> list[Value]:
    """The results of an If, a Loop or a Scan."""
    if node.op_type == "If":
        return _branch(node, run)
    return _loop(context, node, run) if node.op_type == "Loop" else _scan(context, node, run)


def _graph(node: Node, name: str) -> GraphProto:
    graph = node.attributes.get(name)
    if not isinstance(graph, GraphProto):
        raise node.error(f"attribute {name} must be a graph")
    return graph


def _branch(node: Node, run: Run) -> list[Value]:
    taken = _truth(node, node.input(0), "its condition")
    graph = _graph(node, "then_branch" if taken else "else_branch")
    results = run(graph, {}, "")
    if len(results) < len(node.outputs):
        raise node.error(f"its branch makes {len(results)} values, not {len(node.outputs)}")
    return results


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
    count: int | None = None
    if limit is not None:
        numbers = context.fixed_ints(node, 0)
        if len(numbers) != 1:
            raise node.error(f"its trip count has {len(numbers)} elements, it must have one")
        count = numbers[0]
    running: Value = given or KnownValue("", "bool", np.array(True))
    parts: list[list[Value]] = [[] for _ in range(stacked)]
    step = 0
    while (count is None or step < count) and _truth(node, running, "its condition"):
        if step >= MOST_ITERATIONS:
            raise node.unsupported(f"more than {MOST_ITERATIONS} iterations are not written out")
        at = KnownValue(f"{node.outputs[0]}.step", "int64", np.array(step, "int64"))
        names = [info.name for info in body.input]
        results = run(body, dict(zip(names, [at, running, *states], strict=True)), f"{step}: ")
        # A condition that nobody reads need not be known.
        running = results[0] if count is None or step + 1 < count else running
        states = results[1 : 1 + len(states)]
        for part, value in zip(parts, results[1 + len(states) :], strict=True):
            part.append(value)
        step += 1
    return [*states, *(_stack(context, node, part, 0) for part in parts)]


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
    lengths = {value.shape[axis] for axis, value in zip(axes, scanned, strict=True)}
    length = lengths.pop()
    if lengths or not isinstance(length, int):
        raise node.unsupported("a scan over different or unknown lengths is not written out")
    if not 1 <= length <= MOST_ITERATIONS:
        raise node.unsupported(f"a scan of {length} steps: 1 to {MOST_ITERATIONS} are written out")
    parts: list[list[Value]] = [[] for _ in range(stacked)]
    for step in range(length):
        slices = [
            _slice(context, node, value, axis, length - 1 - step if turned else step)
            for value, axis, turned in zip(scanned, axes, backwards, strict=True)
        ]
        names = [info.name for info in body.input]
        results = run(body, dict(zip(names, [*states, *slices], strict=True)), f"{step}: ")
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


def _list(node: Node, name: str, count: int) -> Sequence[int]:
    values = node.integers(name, (0,) * count)
    if len(values) != count:
        raise node.error(f"{name} has {len(values)} numbers, not {count}")
    return values


def _slice(context: Context, node: Node, value: Value, axis: int, at: int) -> Value:
    name = f"{value.name}.{at}"
    shape = [*value.shape[:axis], *value.shape[axis + 1 :]]
    if isinstance(value, KnownValue) and not value.symbolic:
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
