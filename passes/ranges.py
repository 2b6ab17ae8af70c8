"""Interval analysis: the least and the greatest value that an integer tensor can hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from graphc.passes.graph import Graph
from graphc.passes.node import Node

Interval: TypeAlias = "tuple[float, float]"
"""Both ends included; infinite where nothing is known."""

UNKNOWN: Interval = (-np.inf, np.inf)
_RESHAPES = {"reshape", "permute_dims", "expand_dims", "squeeze", "flatten", "match_cast"}
_COPIES = {"broadcast_to", "repeat", "tile", "flip", "strided_slice"}
_GATHERS = {"take", "gather_elements", "gather_nd"}
_MOVES = frozenset(_RESHAPES | _COPIES | _GATHERS)
_READ_AT_MOST = 1 << 20
_WRAPS = 16
"""Sums in types of so many bits are expected to wrap; indices and lengths in wider ones are not."""


class Ranges:
    """Intervals of the nodes of one graph, found once each."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._known: dict[Node, Interval] = {}

    def of(self, node: Node) -> Interval:
        """The interval of a node."""
        if node not in self._known:
            # Inputs first and by hand: a long chain must not overflow Python's stack.
            stack = [node]
            while stack:
                top = stack[-1]
                waiting = [source for source in top.inputs if source not in self._known]
                if waiting:
                    stack.extend(waiting)
                    continue
                stack.pop()
                self._known[top] = self._find(top)
        return self._known[node]

    def _find(self, node: Node) -> Interval:
        if not node.is_tensor or not _is_integral(node):
            return UNKNOWN
        low, high = self._by_operator(node)
        if node.dtype == "bool":
            return max(low, 0.0), min(high, 1.0)
        limits = np.iinfo(node.dtype)
        if limits.bits <= _WRAPS and (low < limits.min or high > limits.max):
            return float(limits.min), float(limits.max)
        return (max(low, 0.0) if limits.min == 0 else low), high

    def _by_operator(self, node: Node) -> Interval:
        sources = [self._known[source] for source in node.inputs]
        if node.is_constant:
            return self._constant(node)
        if node.op in _MOVES or node.op == "full":
            return sources[0]
        if node.op == "arange":
            return self._arange(node)
        if node.op in ("ones", "zeros"):
            return (1, 1) if node.op == "ones" else (0, 0)
        if node.op == "call_pure_packed" and "graphc.check_indices" in str(node.expr.args[0]):
            return self._checked(node, sources[0])
        if node.op in ("concat", "where"):
            return _union(sources if node.op == "concat" else sources[1:])
        if node.op == "astype":
            return _cast(node, sources[0]) if _is_integral(node.inputs[0]) else UNKNOWN
        function = _FUNCTIONS.get(node.op)
        return function(*sources) if function else UNKNOWN

    def _constant(self, node: Node) -> Interval:
        array = self._graph.value(node)
        if not 0 < array.size <= _READ_AT_MOST:
            return UNKNOWN
        return float(array.min()), float(array.max())

    def _arange(self, node: Node) -> Interval:
        start, stop, step = node.expr.args
        if getattr(step, "value", None) != 1:
            return UNKNOWN
        low, _ = self._graph.shapes.bounds(_plain(start))
        _, high = self._graph.shapes.bounds(_plain(stop))
        return (-np.inf if low is None else low), (np.inf if high is None else high - 1)

    def _checked(self, node: Node, source: Interval) -> Interval:
        low, high = (self._graph.shapes.bounds(_plain(arg)) for arg in _limits(node))
        least = -np.inf if low[0] is None else low[0]
        most = np.inf if high[1] is None else high[1]
        if least == most:
            return source  # known only because it is checked: the check must stay in use
        return max(least, source[0]), min(most, source[1])


def _is_integral(node: Node) -> bool:
    return node.dtype == "bool" or node.dtype.startswith(("int", "uint"))


def _limits(node: Node) -> list[object]:
    """The low and high arguments of a check of indices."""
    args = list(node.expr.args[1].fields) if hasattr(node.expr.args[1], "fields") else []
    return (args or list(node.expr.args[1:]))[1:3]


def _plain(value: object) -> object:
    """An int where a TVM constant is one."""
    return getattr(value, "value", value)


def _union(intervals: list[Interval]) -> Interval:
    return min(low for low, _ in intervals), max(high for _, high in intervals)


def _cast(node: Node, source: Interval) -> Interval:
    if node.dtype == "bool":
        if source[0] > 0 or source[1] < 0:
            return (1, 1)
        return (0, 0) if source == (0, 0) else (0, 1)
    limits = np.iinfo(node.dtype)
    known = [end for end in source if np.isfinite(end)]
    fits = all(limits.min <= end <= limits.max for end in known)
    return source if fits else (float(limits.min), float(limits.max))


def _compare(always: Callable[..., bool], never: Callable[..., bool]) -> Callable[..., Interval]:
    def decide(left: Interval, right: Interval) -> Interval:
        if always(left, right):
            return (1, 1)
        return (0, 0) if never(left, right) else (0, 1)

    return decide


def _product(left: Interval, right: Interval) -> Interval:
    ends = [0.0 if 0 in (a, b) else a * b for a in left for b in right]
    return min(ends), max(ends)


_GREATER = _compare(lambda a, b: a[0] > b[1], lambda a, b: a[1] <= b[0])
_AT_LEAST = _compare(lambda a, b: a[0] >= b[1], lambda a, b: a[1] < b[0])

_FUNCTIONS: dict[str, Callable[..., Interval]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "subtract": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "multiply": _product,
    "negative": lambda a: (-a[1], -a[0]),
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "greater": _GREATER,
    "greater_equal": _AT_LEAST,
    "less": lambda a, b: _GREATER(b, a),
    "less_equal": lambda a, b: _AT_LEAST(b, a),
    "equal": _compare(
        lambda a, b: a[0] == a[1] == b[0] == b[1], lambda a, b: a[1] < b[0] or b[1] < a[0]
    ),
    "not_equal": _compare(
        lambda a, b: a[1] < b[0] or b[1] < a[0], lambda a, b: a[0] == a[1] == b[0] == b[1]
    ),
    "logical_and": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "logical_or": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "logical_not": lambda a: (1 - a[1], 1 - a[0]),
    "bitwise_and": lambda a, b: (0, min(a[1], b[1])) if a[0] >= 0 and b[0] >= 0 else UNKNOWN,
}
