"""Patterns that read like the mathematics: `x * op("sigmoid", x)` with `x = wild("x")`.

A pattern is matched from a value towards its inputs. A name matches the same node everywhere in
one match, operands of commutative operators match in both orders, `|` tries alternatives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from graphc.passes.graph import Graph
from graphc.passes.node import Node

Match: TypeAlias = Mapping[str, Node]
"""The nodes found for the names in a pattern."""

_COMMUTATIVE = frozenset({"add", "multiply", "maximum", "minimum", "logical_and", "logical_or"})


class Pattern:
    """Base of all patterns; combine them with + - * / and |."""

    def find(self, graph: Graph, node: Node) -> Match | None:
        """The first match of the pattern at `node`."""
        return next(self.matches(graph, node, {}), None)

    def matches(self, graph: Graph, node: Node, found: Match) -> Iterator[Match]:
        """Every match at `node` that agrees with what was `found` already."""
        raise NotImplementedError

    def __add__(self, other: Pattern | float) -> Pattern:
        return op("add", self, other)

    def __radd__(self, other: float) -> Pattern:
        return op("add", other, self)

    def __sub__(self, other: Pattern | float) -> Pattern:
        return op("subtract", self, other)

    def __mul__(self, other: Pattern | float) -> Pattern:
        return op("multiply", self, other)

    def __rmul__(self, other: float) -> Pattern:
        return op("multiply", other, self)

    def __truediv__(self, other: Pattern | float) -> Pattern:
        return op("divide", self, other)

    def __rtruediv__(self, other: float) -> Pattern:
        return op("divide", other, self)

    def __or__(self, other: Pattern) -> Pattern:
        return Alternatives((self, other))


@dataclass(frozen=True)
class Wild(Pattern):
    """Any value, called `name`."""

    name: str

    def matches(self, graph: Graph, node: Node, found: Match) -> Iterator[Match]:
        """Once, unless the name already means another node."""
        if found.get(self.name, node) is node:
            yield {**found, self.name: node}


@dataclass(frozen=True)
class Number(Pattern):
    """A constant of one element: of a given value (within `tolerance`), or of any, named."""

    value: float | None
    name: str = ""
    tolerance: float = 1e-6

    def matches(self, graph: Graph, node: Node, found: Match) -> Iterator[Match]:
        """Once, if the value is close enough."""
        number = graph.scalar(node)
        if number is None:
            return
        if self.value is None:
            yield {**found, self.name: node}
        elif close(number, self.value, self.tolerance):
            yield found


@dataclass(frozen=True)
class Operator(Pattern):
    """The result of operator `op` on `operands`; called `name` unless that is empty."""

    op: str
    operands: tuple[Pattern, ...]
    name: str = ""

    def matches(self, graph: Graph, node: Node, found: Match) -> Iterator[Match]:
        """Every way to match the operands, in both orders where that means the same."""
        if node.op != self.op or len(node.inputs) != len(self.operands):
            return
        if self.name:
            found = {**found, self.name: node}
        yield from self._all(graph, self.operands, node.inputs, found)
        if self.op in _COMMUTATIVE:
            yield from self._all(graph, self.operands, node.inputs[::-1], found)

    def _all(
        self, graph: Graph, operands: tuple[Pattern, ...], nodes: tuple[Node, ...], found: Match
    ) -> Iterator[Match]:
        if not operands:
            yield found
            return
        for match in operands[0].matches(graph, nodes[0], found):
            yield from self._all(graph, operands[1:], nodes[1:], match)


@dataclass(frozen=True)
class Alternatives(Pattern):
    """Any one of several patterns, tried in order."""

    choices: tuple[Pattern, ...]

    def matches(self, graph: Graph, node: Node, found: Match) -> Iterator[Match]:
        """The matches of each choice."""
        for choice in self.choices:
            yield from choice.matches(graph, node, found)


def wild(name: str) -> Pattern:
    """Any value, the same one wherever the name occurs."""
    return Wild(name)


def number(value: float | None = None, name: str = "") -> Pattern:
    """A constant of one element."""
    return Number(value, name)


def op(operator: str, *operands: Pattern | float, name: str = "") -> Pattern:
    """The result of an operator; a number stands for a constant of that value."""
    return Operator(operator, tuple(_pattern(operand) for operand in operands), name)


def close(left: float, right: float, tolerance: float = 1e-6) -> bool:
    """Whether two numbers differ by rounding only."""
    return left == right or abs(left - right) <= tolerance * max(abs(left), abs(right))


def _pattern(operand: Pattern | float) -> Pattern:
    return operand if isinstance(operand, Pattern) else Number(float(operand))
