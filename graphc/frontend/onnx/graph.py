"""The checked graph: plain data that the converters read, in an order that can be executed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import FunctionProto, NodeProto

from graphc.errors import ModelError


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

    `functions` are the model's own, by (domain, name); `opsets` the versions that nodes of the
    main graph follow, by domain ("" is ONNX's own); `blockers` what reading it found
    uncompilable; `narrow` the types below 8 bits, or of 8-bit floats, of weights that have one.
    """

    inputs: tuple[GraphInput, ...]
    outputs: tuple[str, ...]
    nodes: tuple[NodeProto, ...]
    weights: Mapping[str, np.ndarray]
    dtypes: Mapping[str, str]
    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str], FunctionProto]
    blockers: tuple[str, ...] = ()
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


def in_order(nodes: Sequence[NodeProto], given: Iterable[str]) -> tuple[NodeProto, ...]:
    """The nodes sorted so that each follows what it reads; unchanged when they already are.

    Raises ModelError for values made twice, values that nothing makes, and cycles.
    """
    made_by: dict[str, int] = {}
    known = set(given)
    for index, node in enumerate(nodes):
        for name in node.output:
            if not name:
                continue
            if name in made_by or name in known:
                raise ModelError(f"{describe(node)}: value {name!r} is defined twice")
            made_by[name] = index
    waiting: list[int] = []
    followers: dict[int, list[int]] = {}
    for index, node in enumerate(nodes):
        needs = set()
        for name in node.input:
            if not name or name in known:
                continue
            if name not in made_by:
                raise ModelError(f"{describe(node)}: input {name!r} is made by no node")
            needs.add(made_by[name])
        waiting.append(len(needs))
        for other in needs:
            followers.setdefault(other, []).append(index)
    if all(
        made_by.get(name, -1) < index for index, node in enumerate(nodes) for name in node.input
    ):
        return tuple(nodes)
    return _sorted(nodes, waiting, followers)


def _sorted(
    nodes: Sequence[NodeProto], waiting: list[int], followers: Mapping[int, Sequence[int]]
) -> tuple[NodeProto, ...]:
    ready = [index for index, count in enumerate(waiting) if count == 0]
    order: list[int] = []
    for index in ready:  # grows while it is walked
        order.append(index)
        for follower in followers.get(index, ()):
            waiting[follower] -= 1
            if waiting[follower] == 0:
                ready.append(follower)
    if len(order) < len(nodes):
        left = [describe(nodes[index]) for index, count in enumerate(waiting) if count > 0]
        raise ModelError(f"the graph has a cycle through {', '.join(left[:4])}")
    return tuple(nodes[index] for index in order)
