"""A model that chooses by a boolean input -> one function for each choice.

Merged decoders do so: the input is the condition of an If and of nothing else, and without a past
the inputs of the past are not read. The function that reads fewer inputs is `main`, the other one
`main_with_past`; both share the weights. Where both choices read the same inputs, the If stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto

from graphc.frontend.onnx.graph import Graph

BASE, OTHER = "main", "main_with_past"


def choices(graph: Graph) -> list[tuple[str, Graph, tuple[str, bool]]]:
    """The functions of a model: names, graphs, and what each has chosen; empty without a choice."""
    name = _choice(graph)
    if name is None:
        return []
    made = [(value, _chosen(graph, name, value)) for value in (False, True)]
    if len({chosen.inputs for _, chosen in made}) == 1:
        return []  # a branch like others, which the program takes
    made.sort(key=lambda pair: len(pair[1].inputs))  # stable: False first when they are alike
    return [
        (function, chosen, (name, value))
        for function, (value, chosen) in zip((BASE, OTHER), made, strict=True)
    ]


def _choice(graph: Graph) -> str | None:
    """The boolean input that is the condition of branches and nothing else."""
    for item in graph.inputs:
        if item.dtype != "bool" or any(extent != 1 for extent in item.shape):
            continue
        readers = [node for node in graph.nodes if item.name in _reads(node)]
        conditions = [
            node
            for node in readers
            if node.op_type == "If" and not node.domain and node.input[0] == item.name
        ]
        inside = any(item.name in _inner_reads(node) for node in readers)
        if readers and len(conditions) == len(readers) and not inside:
            return item.name
    return None


def _chosen(graph: Graph, name: str, value: bool) -> Graph:
    """The graph with the input fixed and the branches that it chooses written in; inputs that
    are read no more are left out."""
    nodes: list[NodeProto] = []
    for node in graph.nodes:
        if node.op_type == "If" and name in node.input:
            wanted = "then_branch" if value else "else_branch"
            nodes.append(_kept(node, wanted))
        else:
            nodes.append(node)
    used = _live(nodes, graph.outputs)
    item = next(item for item in graph.inputs if item.name == name)
    fixed = np.full([1] * len(item.shape), value)
    return replace(
        graph,
        inputs=tuple(
            other
            for other in graph.inputs
            if other.name != name and (other.name in used or other.name in graph.outputs)
        ),
        nodes=tuple(nodes),
        weights={**graph.weights, name: fixed},
        dtypes={**graph.dtypes, name: "bool"},
    )


def _kept(node: NodeProto, wanted: str) -> NodeProto:
    """The If with both branches the one that is taken: what the other one reads is not needed."""
    branch = next(attribute.g for attribute in node.attribute if attribute.name == wanted)
    kept = NodeProto()
    kept.CopyFrom(node)
    for attribute in kept.attribute:
        if attribute.type == AttributeProto.GRAPH and attribute.name != wanted:
            attribute.CopyFrom(onnx.helper.make_attribute(attribute.name, branch))
    return kept


def _live(nodes: Sequence[NodeProto], outputs: Iterable[str]) -> set[str]:
    """What the nodes that lead to the outputs read."""
    wanted = set(outputs)
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            wanted |= _reads(node)
    return wanted


def _reads(node: NodeProto) -> set[str]:
    return set(node.input) | _inner_reads(node)


def _inner_reads(node: NodeProto) -> set[str]:
    """What the graphs in a node read from around them."""
    found: set[str] = set()
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            inner = attribute.g
            own = {info.name for info in inner.input} | {t.name for t in inner.initializer}
            own |= {name for other in inner.node for name in other.output}
            read = {name for other in inner.node for name in _reads(other)}
            found |= (read | {info.name for info in inner.output}) - own
    return found


def sized(given: Mapping[str, object], graph: Graph, graphs: Sequence[Graph]) -> tuple[str, ...]:
    """The dimensions among `given` that this graph has, or that none of the graphs has."""
    own = {dim for item in graph.inputs for dim in item.shape}
    other = {dim for one in graphs for item in one.inputs for dim in item.shape}
    return tuple(name for name in given if name in own or name not in other)
