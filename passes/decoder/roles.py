"""Follows the axis of the tokens through the graph: who keeps tokens apart, who mixes them.

Every value between the tokens and the logits has one axis of extent outer * sequence * inner, on
which the tokens lie: `Lane`. An operator that sums, sorts, slices or shifts along it mixes
positions; outside the recognised attention none may.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from tvm import relax, tirx

from graphc.codegen.rewrite import walk
from graphc.ir import Expr
from graphc.passes.cancel_arithmetic import uniform
from graphc.passes.decoder.lane import Lane, Mixes
from graphc.passes.decoder.lane_rules import ELEMENTWISE, RULES, aligned, of_kernel, unknown
from graphc.passes.decoder.specialise import variables
from graphc.passes.graph import Graph
from graphc.passes.node import Node
from graphc.passes.shapes import dims_of


class Lanes:
    """Lanes of the nodes of one graph; `sites` are the attentions, which may mix."""

    def __init__(
        self, graph: Graph, length: tirx.Var, sites: Collection[Node], tokens: Collection[Node]
    ) -> None:
        self.graph, self._length = graph, length
        self._sites, self._tokens = set(sites), tokens
        self.known: dict[Node, Lane | None] = {}

    def find(self, nodes: Sequence[Node]) -> dict[Node, Lane | None]:
        """The lane of each node, None without one; raises Mixes."""
        for node in nodes:
            self.known[node] = self._lane(node)
        return self.known

    def _lane(self, node: Node) -> Lane | None:
        if not node.is_tensor:
            return self._tuple(node)
        axes = [a for a, extent in enumerate(node.shape) if self._length in variables(extent)]
        if not axes:
            self._check_gone(node)
            return None
        if len(axes) > 1:
            raise Mixes(node, "it pairs every token with every other")
        (axis,) = axes
        sources = {s: self.known[s] for s in node.inputs if self.known.get(s) is not None}
        if node in self._sites or not sources or self._is_count(node):
            return self._plain(node, axis)
        rule = RULES.get(node.op, aligned if node.op in ELEMENTWISE else unknown)
        lane = rule(self, node, axis)
        if lane is None:
            raise Mixes(node, "its tokens do not stay in their places")
        return lane

    def _tuple(self, node: Node) -> Lane | None:
        """The lane in every field of a split or of a kernel's results."""
        lane = self.known.get(node.inputs[0])
        if lane is None or not isinstance(node.ty, relax.TupleType):
            return None
        if node.op == "call_tir":
            axes = [self._axis(dims_of(field.shape.values)) for field in node.ty.fields]
            if len(set(axes)) != 1 or axes[0] is None:
                raise Mixes(node, "its results have their tokens on different axes")
            return of_kernel(self, node, axes[0], len(axes))
        if int(getattr(node.attrs, "axis", lane.axis)) % node.inputs[0].rank == lane.axis:
            raise Mixes(node, "it works along the tokens")
        return lane

    def _axis(self, shape: Sequence[Expr]) -> int | None:
        """The axis of the tokens in a shape."""
        axes = [axis for axis, extent in enumerate(shape) if self._length in variables(extent)]
        return axes[0] if len(axes) == 1 else None

    def _check_gone(self, node: Node) -> None:
        is_gone = any(self.known.get(source) is not None for source in node.inputs)
        if is_gone and node in self._tokens:
            raise Mixes(node, "it makes one value of all tokens")

    def _plain(self, node: Node, axis: int) -> Lane:
        """The lane of a value that is given or made from no other lane."""
        count = self._per_token(node.shape[axis])
        if count is None:
            raise Mixes(node, f"its extent {node.shape[axis]} is no multiple of the tokens")
        return Lane(axis, 1, count)

    def _is_count(self, node: Node) -> bool:
        """Whether a sum along the tokens numbers them, which positions do too."""
        return node.op == "cumsum" and uniform(self.graph, node.inputs[0]) is not None

    def _per_token(self, extent: Expr) -> int | None:
        """c if the extent is c * sequence."""
        if self.graph.shapes.same(extent, self._length):
            return 1
        for factor in _divisors_in(extent):
            if self.graph.shapes.same(extent, self._length * factor):
                return factor
        return None

    def of(self, node: Node) -> Lane | None:
        """The lane of an input of the node at hand."""
        return self.known.get(node)


def _divisors_in(extent: Expr) -> list[int]:
    """Whole factors worth trying: products of the numbers in the expression."""
    numbers = [int(part.value) for part in walk(extent) if isinstance(part, tirx.IntImm)]
    return sorted({*numbers, math.prod(numbers)})
