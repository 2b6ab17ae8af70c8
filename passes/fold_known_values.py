"""Replace integers and booleans that can have one value only, whatever the input.

    arange(n) >= 0                     ----->   true
    and(true[b, s], mask)              ----->   mask                 (by `simplify`, afterwards)
    gather(zeros[1, 512], positions)   ----->   broadcast(0)

Exported masks and token types are full of these: a causal test that an encoder never fails, a
table of zeros that is indexed by position. A mask that is true throughout disappears.
"""

from __future__ import annotations

from graphc.ir import Model
from graphc.passes.cancel_arithmetic import broadcast_like, scalar_like, uniform
from graphc.passes.graph import Graph, rewrite
from graphc.passes.ranges import Ranges
from graphc.passes.report import Report


def fold_known_values(model: Model, report: Report) -> Model:
    """Fold every function of the model."""
    return rewrite(model, lambda graph: _fold(graph, report))


def _fold(graph: Graph, report: Report) -> None:
    ranges = Ranges(graph)
    for node in graph.walk():
        low, high = ranges.of(node)
        if low == high and uniform(graph, node) is None:
            graph.replace(node, broadcast_like(graph, scalar_like(graph, low, node), node))
            report.hit("fold_known_values")
