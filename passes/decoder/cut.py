"""Where the keys and values of one attention are kept: a minimum cut of the dataflow.

Behind the cut only data may be moved (reshapes, transposes, repeated heads), for that is what a
paged kernel does by itself. The capacity of a value is its bytes per token; among equal cuts the
latest is taken, so that the cached value needs no further work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import networkx
import numpy as np
from tvm import relax, tirx

from graphc.passes.cancel_layout import permute_to, reshape_to
from graphc.passes.decoder.lane import Lane
from graphc.passes.decoder.probe import Probe
from graphc.passes.decoder.recognise import Site
from graphc.passes.decoder.specialise import variables
from graphc.passes.evaluate import Array, numpy_dtype
from graphc.passes.graph import Graph
from graphc.passes.node import Node

MOVES = frozenset({"reshape", "permute_dims", "broadcast_to", "repeat", "strided_slice"})
_SOURCE, _SINK = "source", "sink"


@dataclass(frozen=True)
class Kept:
    """What a cache holds of each token: `value` [s, heads, width]."""

    value: Node
    heads: int
    width: int


def minimum_cut(
    ends: Sequence[Node],
    tokens: Collection[Node],
    length: tirx.Var,
    is_open: Callable[[Node], bool],
) -> list[Node]:
    """The cheapest values from which `ends` follow through nodes that are `is_open`."""
    network = networkx.DiGraph()
    pending, seen = list(ends), set(ends)
    for end in ends:
        network.add_edge((end, "out"), _SINK)  # without a capacity: never cut
    while pending:
        node = pending.pop()
        network.add_edge((node, "in"), (node, "out"), capacity=per_token(node, length))
        if not is_open(node):
            network.add_edge(_SOURCE, (node, "in"))
            continue
        for source in node.inputs:
            if source in tokens:
                network.add_edge((source, "out"), (node, "in"))
                if source not in seen:
                    seen.add(source)
                    pending.append(source)
    # From the sink: of equal cuts the one nearest to it.
    _, (late, _) = networkx.minimum_cut(network.reverse(copy=True), _SINK, _SOURCE)
    cut = [n for n in seen if (n, "out") in late and (n, "in") not in late]
    return sorted(cut, key=lambda node: node.order)


def per_token(node: Node, length: tirx.Var) -> int:
    """Bytes of a value for each token."""
    return size_per_token(node, length) * numpy_dtype(node.dtype).itemsize


def size_per_token(node: Node, length: tirx.Var) -> int:
    """Elements of a value for each token."""
    return math.prod(
        extent if isinstance(extent, int) else _multiple(extent, length) for extent in node.shape
    )


def _multiple(extent: tirx.PrimExpr, length: tirx.Var) -> int:
    from graphc.codegen.rewrite import walk

    assert variables(extent) == {length}, extent
    numbers = [int(part.value) for part in walk(extent) if isinstance(part, tirx.IntImm)]
    return math.prod(numbers)


def moves_only(node: Node) -> bool:
    """Whether a node only moves data."""
    return node.op in MOVES


def kept(
    graph: Graph,
    site: Site,
    tokens: Collection[Node],
    length: tirx.Var,
    lanes: dict[Node, Lane | None],
) -> tuple[Kept, Kept]:
    """What is cached for the keys and the values of an attention."""
    cut = minimum_cut([site.k, site.v], tokens, length, moves_only)
    return tuple(_kept(graph, end, cut, length, lanes) for end in (site.k, site.v))  # type: ignore[return-value]


def _kept(
    graph: Graph,
    end: Node,
    cut: Sequence[Node],
    length: tirx.Var,
    lanes: dict[Node, Lane | None],
) -> Kept:
    """The part of the cut that `end` [s, h, d] shows, without repeated heads."""
    found = index_map(graph, end, cut, length, lanes)
    if found is not None:
        source, index = found
        rows, _ = np.unique(index, axis=0, return_index=True)
        heads, width = index.shape
        order = index[:: heads // len(rows)]
        if np.array_equal(np.repeat(order, heads // len(rows), axis=0), index):
            value = pick(graph, source, order, length, lanes)
            if value is not None:
                return Kept(value, len(order), width)
    _, heads, width = end.shape
    assert isinstance(heads, int) and isinstance(width, int), end.shape
    return Kept(end, heads, width)


def index_map(
    graph: Graph,
    end: Node,
    sources: Sequence[Node],
    length: tirx.Var,
    lanes: dict[Node, Lane | None],
) -> tuple[Node, Array] | None:
    """The one source that `end` [s, h, d] shows, and which of its elements [h, d], token by token.

    Elements are numbered in the source's memory order without the axis of the tokens.
    """
    numbered, start = {}, 0
    bounds: list[tuple[int, int, Node]] = []
    for source in sources:
        lane, size = lanes.get(source), size_per_token(source, length)
        if lane is None or not lane.is_plain:
            return None
        shape = [1 if axis == lane.axis else extent for axis, extent in enumerate(source.shape)]
        numbers = np.arange(start, start + size, dtype=numpy_dtype(source.dtype))
        if size + start >= 1 << 24:
            return None
        numbered[source] = numbers.reshape(shape)
        bounds.append((start, start + size, source))
        start += size
    index = Probe(graph, length).at(end, [0], numbered)[0].astype(np.int64)
    for low, high, source in bounds:
        if low <= index.min() and index.max() < high:
            return source, index - low
    return None


def pick(
    graph: Graph,
    source: Node,
    index: Array,
    length: tirx.Var,
    lanes: dict[Node, Lane | None],
) -> Node | None:
    """[s, h, d] of elements of a source; None where that is more than a slice of it."""
    lane = lanes[source]
    assert lane is not None
    heads, width = index.shape
    graph.at(source)
    size = size_per_token(source, length)
    first = int(index[0, 0])
    regular = np.array_equal(index.reshape(-1), np.arange(first, first + index.size))
    if not regular:
        return None
    order = [lane.axis, *(axis for axis in range(source.rank) if axis != lane.axis)]
    flat = reshape_to(graph, permute_to(graph, source, order), (length, size))
    if index.size != size:
        flat = graph.emit(relax.op.strided_slice(flat.var, [1], [first], [first + index.size]))
    return reshape_to(graph, flat, (length, heads, width))
