"""Remove what does nothing, until nothing more can be removed; dead code goes with it.

The rules are in cancel_layout.py and cancel_arithmetic.py. They look from a node towards its
inputs, so one walk in order does nearly everything; it is repeated while a rule still fires.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from graphc.ir import Model
from graphc.passes.cancel_arithmetic import (
    cancel_double,
    cancel_neutral,
    choose_branch,
    multiply_by_exact_reciprocal,
    square_by_multiplying,
)
from graphc.passes.cancel_layout import (
    ELEMENTWISE,
    UNARY,
    cancel_broadcast,
    cancel_cast,
    cancel_concat,
    cancel_implied_broadcast,
    cancel_joined_axes,
    cancel_match_cast,
    cancel_permute,
    cancel_reshape,
    cancel_slice,
    sink_broadcast,
    use_reshape,
)
from graphc.passes.graph import Graph, rewrite
from graphc.passes.node import Node
from graphc.passes.report import Report

Rule: TypeAlias = Callable[[Graph, Node], "Node | None"]

_LIMIT = 50
_NEUTRAL = ("add", "subtract", "multiply", "divide", "power", "logical_and", "logical_or")

_RULES: dict[str, tuple[Rule, ...]] = {
    "astype": (cancel_cast,),
    "broadcast_to": (cancel_broadcast,),
    "concat": (cancel_concat,),
    "expand_dims": (use_reshape,),
    "flatten": (use_reshape,),
    "logical_not": (cancel_double,),
    "match_cast": (cancel_match_cast,),
    "negative": (cancel_double,),
    "permute_dims": (cancel_permute,),
    "reshape": (cancel_reshape, cancel_joined_axes),
    "square": (square_by_multiplying,),
    "squeeze": (use_reshape,),
    "strided_slice": (cancel_slice,),
    "where": (choose_branch, cancel_implied_broadcast),
}
for _name in _NEUTRAL:
    _RULES[_name] = (cancel_neutral,)
_RULES["divide"] += (multiply_by_exact_reciprocal,)
_RULES["power"] += (square_by_multiplying,)
for _name in ELEMENTWISE - {"where"}:
    _RULES[_name] = (*_RULES.get(_name, ()), cancel_implied_broadcast)
for _name in ELEMENTWISE | UNARY:
    _RULES[_name] = (*_RULES.get(_name, ()), sink_broadcast)


def simplify(model: Model, report: Report) -> Model:
    """Simplify every function of the model."""
    return rewrite(model, lambda graph: _simplify(graph, report))


def _simplify(graph: Graph, report: Report) -> None:
    for _ in range(_LIMIT):
        changed = False
        for node in graph.walk():
            changed |= _apply(graph, node, report)
        if not changed:
            return
    raise AssertionError(f"the rules of simplify do not come to rest in {_LIMIT} walks")


def _apply(graph: Graph, node: Node, report: Report) -> bool:
    for rule in _RULES.get(node.op, ()):
        if not node.is_tensor:
            return False
        new = rule(graph, node)
        if new is not None and new is not node:
            graph.replace(node, new)
            report.hit(rule.__name__)
            return True
    return False
