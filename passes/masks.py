"""Tells what a mask lets through by computing it at small sizes.

The part of the graph that makes a bias is cut out, its dimensions are fixed, and numpy evaluates
it for inputs of ones and for inputs that count; what cannot be evaluated is called "computed".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from tvm import relax

from graphc import env
from graphc.ir import Expr, Model
from graphc.passes.evaluate import can_evaluate, evaluate, numpy_dtype
from graphc.passes.evaluate_kernel import can_run_kernel, run_kernel
from graphc.passes.graph import Graph
from graphc.passes.node import Node

_HIDDEN: Final = -1e4  # masks add this or less
_LENGTH: Final = 7
_BATCH: Final = 2
_LONGEST: Final = 4200  # so many positions squared are 70 MB
_MOST_NODES: Final = 400
_MOST_KERNELS: Final = 8  # each is compiled

Array = np.ndarray[Any, Any]


class MaskReader:
    """Reads the masks of one function; equal ones are computed once."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._known: dict[Node, str] = {}

    def kind(self, bias: Node, queries: Expr, keys: Expr) -> str:
        """Words, joined by commas: causal, window N, padding, position bias, or "computed"."""
        if bias not in self._known:
            self._known[bias] = self._kind(bias)
        return self._known[bias]

    def _kind(self, bias: Node) -> str:
        subgraph = _ancestors(bias)
        if len(subgraph) > _MOST_NODES or any(node.op == "call" for node in subgraph):
            return "computed"
        words: list[str] = []
        ones = self._value(bias, _LENGTH, _ones)
        if ones is None:
            return "computed"
        counted = self._value(bias, _LENGTH, _counted)
        views = [view for view in (ones, counted) if view is not None]
        causal = any(_is_causal(view) for view in views)
        window = self._window(bias, subgraph, causal)
        if causal or window:
            sides = "causal" if causal else ""
            words.append(f"{sides} window {window}".strip() if window else sides)
        ended = self._value(bias, _LENGTH, _ended)
        if ended is not None and not np.array_equal(ended, ones, equal_nan=True):
            words.append("padding")
        visible = ones[ones > _HIDDEN]
        if visible.size and bool(np.any(visible != visible[0])):
            words.append("position bias")
        return ", ".join(words) or "none"

    def _window(self, bias: Node, subgraph: set[Node], causal: bool) -> int:
        """How many keys a query sees, itself included and on one side, 0 for all of them; the
        graph has that length among its numbers, or one less."""
        numbers = {int(n.expr.value.numpy()) for n in subgraph if _is_count(n)}
        for number in sorted(abs(n) for n in numbers):
            if not 1 < number <= _LONGEST - 4:
                continue
            seen = [self._seen_last(bias, number + more, causal) for more in (2, 4)]
            if seen[0] == seen[1] and 0 < seen[0] < number + 2:
                return seen[0]
        return 0

    def _seen_last(self, bias: Node, length: int, causal: bool) -> int:
        """How many keys the last query of so many sees, 0 when that is no mask of the kind."""
        view = self._value(bias, length, _counted)
        if view is None or view.shape[-2] < 2 or (causal and not _is_causal(view)):
            return 0
        return int(np.sum(view.reshape(-1, view.shape[-1])[-1] > _HIDDEN))

    def _value(self, bias: Node, length: int, fill: Any) -> Array | None:
        """The bias [b, h, s, t] at a batch of 2 and other dimensions of `length`."""
        model = self._graph.model
        part = Graph(model, self._graph.name)
        twin = next((node for node in part.nodes() if node.name == bias.name), None)
        if twin is None or twin.op != bias.op:
            return None
        part.outputs = [twin]
        batch = _names(bias.shape[0])
        sizes = {
            dim.name: _clipped(_BATCH if dim.name in batch else length, dim.lower, dim.upper)
            for dim in model.signatures[self._graph.name].dims
        }
        fixed = _fixed(part.finish(), self._graph.name, sizes)
        return None if fixed is None else _computed(fixed, self._graph.name, fill)


def _fixed(model: Model, name: str, sizes: Mapping[str, int]) -> Model | None:
    free = {var.name for var in relax.analysis.defined_symbolic_vars(model.mod[name])}
    bound = {dim: size for dim, size in sizes.items() if dim in free}
    if free - bound.keys():
        return None
    mod = relax.transform.BindSymbolicVars(bound, name)(model.mod) if bound else model.mod
    return replace(model, mod=mod)


def _computed(model: Model, name: str, fill: Any) -> Array | None:
    graph = Graph(model, name)
    values: dict[Node, Array] = {}
    kernels, bias = 0, graph.outputs[0].name
    for node in graph.nodes():
        if node.is_constant:
            values[node] = graph.value(node)
        elif node.op == "input":
            shape = node.static_shape
            if shape is None or int(np.prod(shape, dtype=object)) > _LONGEST * _LONGEST:
                return None
            values[node] = fill(shape).astype(numpy_dtype(node.dtype))
        elif any(source not in values for source in node.inputs):
            return None
        elif node.op == "match_cast" or "graphc.check_indices" in str(node.expr.args[0]):
            values[node] = values[node.inputs[0]]
        elif can_run_kernel(graph, node) and kernels < _MOST_KERNELS:
            kernels += 1
            values[node] = run_kernel(graph, node, [values[source] for source in node.inputs])
        elif can_evaluate(node):
            values[node] = evaluate(node, [values[source] for source in node.inputs])
        else:
            env.log(2, f"mask {bias}: {node} is not evaluated")
            return None
    return values[graph.outputs[0]]


def _is_causal(bias: Array) -> bool:
    """No query sees a later key, and the last one sees more than itself or the first its own."""
    queries, keys = bias.shape[-2:]
    if queries < 2 or keys < queries:
        return False
    seen = np.any((bias > _HIDDEN).reshape(-1, queries, keys), axis=0, keepdims=True)[0]
    later = np.triu(np.ones((queries, keys), bool), keys - queries + 1)
    return not bool(seen[later].any()) and bool(seen[-1].any())


def _ancestors(node: Node) -> set[Node]:
    seen, stack = {node}, [node]
    while stack and len(seen) <= _MOST_NODES:
        for source in stack.pop().inputs:
            if source not in seen:
                seen.add(source)
                stack.append(source)
    return seen


def _is_count(node: Node) -> bool:
    return node.op == "const" and node.static_shape == () and node.dtype.startswith("int")


def _names(extent: Expr) -> set[str]:
    return set() if isinstance(extent, int) else {extent.name} if hasattr(extent, "name") else set()


def _clipped(value: int, lower: int, upper: int | None) -> int:
    return max(lower, value if upper is None else min(value, upper))


def _ones(shape: tuple[int, ...]) -> Array:
    return np.ones(shape)


def _counted(shape: tuple[int, ...]) -> Array:
    """0, 1, 2 ... along the last axis: positions."""
    return np.broadcast_to(np.arange(shape[-1]) if shape else np.zeros(()), shape)


def _ended(shape: tuple[int, ...]) -> Array:
    """Ones with zeros at the end of the last axis: padding."""
    values = np.ones(shape)
    if shape and shape[-1] > 2:
        values[..., -2:] = 0
    return values
