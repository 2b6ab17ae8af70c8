"""The checked graph: plain data that the converters read, in an order that can be executed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import FunctionProto, NodeProto

from graphc.errors import Blocker, ModelError, blockers_of, refusal


@dataclass(frozen=True)
class GraphInput:
    """A runtime input; `shape` has a number, a name or None (unknown) for each axis."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]
    narrow: str = ""


@dataclass(frozen=True)
class Graph:
    """An ONNX model whose structure has been checked.

    `nodes` are in order and sound, `all_nodes` all that there are. `functions` are the model's
    own, by (domain, name); `opsets` the versions that nodes of the main graph follow, by domain
    ("" is ONNX's own); `blockers` what reading it found uncompilable, and what is lost by that is
    left out; `convertible` is false when the operator set is none that is known. `narrow` has the
    types below 8 bits, or of 8-bit floats, of weights that have one.
    """

    inputs: tuple[GraphInput, ...]
    outputs: tuple[str, ...]
    nodes: tuple[NodeProto, ...]
    weights: Mapping[str, np.ndarray]
    dtypes: Mapping[str, str]
    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str], FunctionProto]
    all_nodes: tuple[NodeProto, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    convertible: bool = True
    narrow: Mapping[str, str] = field(default_factory=dict)


def domain_of(name: str) -> str:
    """ONNX's own domain has two spellings."""
    return "" if name == "ai.onnx" else name


def describe(node: NodeProto) -> str:
    """How messages call a node: by its name, or by its first output."""
    if node.name:
        return f"{node.op_type} node {node.name!r}"
    first = next((name for name in node.output if name), "")
    return f"{node.op_type} node making {first!r}"


def name_of(node: NodeProto) -> str:
    """The node's name; one without is known by its first output."""
    return node.name or next((name for name in node.output if name), "")


def in_order(nodes: Sequence[NodeProto], given: Iterable[str]) -> tuple[NodeProto, ...]:
    """The nodes sorted so that each follows what it reads; unchanged when they already are.

    Raises ModelError for values made twice, values that nothing makes, and cycles.
    """
    found, blockers = sound(nodes, given)
    if blockers:
        raise refusal("the graph", blockers)
    return found


def sound(
    nodes: Sequence[NodeProto], given: Iterable[str]
) -> tuple[tuple[NodeProto, ...], tuple[Blocker, ...]]:
    """The nodes that can be executed, in order, and why the others cannot: values made twice,
    values that nothing makes, and cycles. What follows an unsound node is kept."""
    made_by: dict[str, int] = {}
    known = set(given)
    blockers: list[Blocker] = []
    unsound: set[int] = set()

    def refuse(index: int, message: str) -> None:
        node = nodes[index]
        error = ModelError(f"{describe(node)}: {message}")
        domain = domain_of(node.domain) or "ai.onnx"
        about = (name_of(node), describe(node), node.op_type, domain)
        keys = ("node", "label", "operator", "domain")
        blockers.extend(blockers_of(error, **dict(zip(keys, about, strict=True))))
        unsound.add(index)

    for index, node in enumerate(nodes):
        for name in filter(None, node.output):
            if name in made_by or name in known:
                refuse(index, f"value {name!r} is defined twice")
            else:
                made_by[name] = index
    needs: list[set[int]] = []
    for index, node in enumerate(nodes):
        needs.append(set())
        for name in filter(None, node.input):
            if name in made_by:
                needs[-1].add(made_by[name])
            elif name not in known:
                refuse(index, f"input {name!r} is made by no node")
    order = _sorted(needs)
    for cycle in _cycles(needs, set(range(len(nodes))) - set(order)):
        places = ", ".join(describe(nodes[index]) for index in cycle[:4])
        text = f"the graph has a cycle through {places}"
        blockers.append(Blocker(text, text, "export the model again", name_of(nodes[cycle[0]]),
                                broken=True))  # fmt: skip
    return tuple(nodes[index] for index in order if index not in unsound), tuple(blockers)


def _sorted(needs: Sequence[set[int]]) -> list[int]:
    """The indices that can be ordered so that each follows what it needs; as given if they are."""
    if all(other < index for index, others in enumerate(needs) for other in others):
        return list(range(len(needs)))
    waiting = [len(others) for others in needs]
    followers: dict[int, list[int]] = {}
    for index, others in enumerate(needs):
        for other in others:
            followers.setdefault(other, []).append(index)
    order = [index for index, count in enumerate(waiting) if count == 0]
    for index in order:  # grows while it is walked
        for follower in followers.get(index, ()):
            waiting[follower] -= 1
            if waiting[follower] == 0:
                order.append(follower)
    return order


def _cycles(needs: Sequence[set[int]], left: set[int]) -> list[list[int]]:
    """The separate knots among the nodes that cannot be ordered, without what only follows one."""
    while True:
        needed = {other for index in left for other in needs[index]}
        if left <= needed:
            break
        left = left & needed
    knots: list[list[int]] = []
    while left:
        knot, pending = set[int](), [min(left)]
        while pending:
            index = pending.pop()
            if index in left and index not in knot:
                knot.add(index)
                pending += [i for i in left if i in needs[index] or index in needs[i]]
        knots.append(sorted(knot))
        left -= knot
    return knots
