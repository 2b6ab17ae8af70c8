"""Values of what depends on positions only, at chosen positions, and what they prove.

Far positions are evaluated too, without a tensor of all positions up to them. The total length is
not known in a step: of what is recomputed there it must not change the value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from graphc.ir import Model, Signature
from graphc.passes.decoder.positions import (
    dependent,
    free_dims,
    is_total,
    position_rule,
    stretch_of,
)
from graphc.passes.decoder.replay import Replay
from graphc.passes.decoder.specialise import NotADecoder, variables
from graphc.passes.evaluate import Array, can_evaluate, evaluate
from graphc.passes.graph import Graph
from graphc.passes.node import Node


class Probe:
    """Values of nodes that depend on positions only, at given positions."""

    def __init__(self, graph: Graph, length: tirx.Var) -> None:
        self._graph, self._length = graph, length

    def at(
        self,
        node: Node,
        positions: Sequence[int],
        given: Mapping[Node, Array] | None = None,
        total: int | None = None,
    ) -> Array:
        """The value where the tokens' positions are these; `given` are the values of some nodes.

        `total` is the length of the sequence, which ends with the last position by default.
        """
        nodes = _ancestors(node, given or {})
        builder = relax.BlockBuilder()
        params = [other.var for other in nodes if other.op == "param"]
        replay = Replay(builder, {self._length: len(positions)})
        total = max(positions) + 1 if total is None else total
        at = relax.const(np.asarray(positions, np.int32), "int32")
        with builder.function("probe", params, attrs={"num_input": 0}):
            with builder.dataflow():
                for other, array in (given or {}).items():
                    replay.values[other] = relax.const(array, str(array.dtype))
                replay.run(nodes, [position_rule(self._graph, self._length, at, total)])
                value = replay.values[node]
                value = value if isinstance(value, relax.Var) else builder.emit(value)
                result = builder.emit_output(relax.Tuple([value]))
            builder.emit_func_output(result)
        mod = tvm.IRModule({**dict(self._graph.model.mod.functions_items()), **_only(builder)})
        model = Model(mod, self._graph.params, {"probe": Signature((), (), ())})
        return _value(Graph(model, "probe"))


def _only(builder: relax.BlockBuilder) -> dict[Any, Any]:
    return {var: fn for var, fn in builder.get().functions_items() if var.name_hint == "probe"}


def _value(graph: Graph) -> Array:
    (wanted,) = graph.outputs
    known: dict[Node, Array] = {}
    for node in graph.nodes():
        if node.is_constant:
            known[node] = graph.value(node)
            continue
        arrays = [known[source] for source in node.inputs]
        more = _MORE.get(node.op)
        if more is not None:
            known[node] = more(node, *arrays)
        elif can_evaluate(node):
            known[node] = evaluate(node, arrays)
        else:
            raise NotADecoder(f"the value of {node.name} ({node.op}) is not computed here")
    return known[wanted]


def _ancestors(node: Node, given: Collection[Node]) -> list[Node]:
    seen: set[Node] = set(given)
    stack = [node]
    while stack:
        top = stack.pop()
        if top not in seen:
            seen.add(top)
            stack.extend(top.inputs)
    return sorted(seen - set(given), key=lambda each: each.order)


def check_independent(graph: Graph, nodes: Collection[Node], length: tirx.Var) -> None:
    """Fail if what tokens meet in these nodes depends on the length of the whole sequence."""
    tokens = dependent(graph)
    border = {
        source
        for node in nodes
        if node in tokens
        for source in node.inputs
        if source not in tokens and not source.is_constant
    }
    for node in sorted(border, key=lambda each: each.order):
        ancestors = _ancestors(node, ())
        if not any(_needs_total(graph, other, length) for other in ancestors):
            continue
        short, long = (Probe(graph, length).at(node, [0, 1, 2, 5], total=n) for n in (6, 11))
        if not np.array_equal(short, long, equal_nan=True):
            raise NotADecoder(f"{node.name} depends on how long the whole sequence is")


def _needs_total(graph: Graph, node: Node, length: tirx.Var) -> bool:
    if node.op == "arange":
        return is_total(graph, node, length)
    if node.op == "strided_slice":
        return any(not isinstance(first, int) for _, first in stretch_of(graph, node, length) or ())
    return node.op == "sum" and length in free_dims(node.inputs[0]) - free_dims(node)


def longest(graph: Graph, tokens: Collection[Node], length: tirx.Var) -> int | None:
    """The largest sequence that all tables of positions have rows for; None without a table."""
    limits = []
    for node in graph.nodes():
        if node.op == "strided_slice":
            for axis, first in stretch_of(graph, node, length) or ():
                rows = node.inputs[0].shape[axis]
                skipped = first if isinstance(first, int) else 0
                limits += [rows - skipped] if isinstance(rows, int) else []
        if node.op == "take" and node.inputs[0].is_constant and node.inputs[1] not in tokens:
            rows = node.inputs[0].shape[0 if node.attrs.axis is None else int(node.attrs.axis)]
            offset = _offset(graph, node.inputs[1], length)
            limits += [rows - offset] if isinstance(rows, int) and offset is not None else []
    return min(limits, default=None)


def _offset(graph: Graph, index: Node, length: tirx.Var) -> int | None:
    """k if an index is positions + k."""
    if not any(length in variables(extent) for extent in index.shape):
        return None
    sample = np.asarray([0, 1, 2, 5])
    found = Probe(graph, length).at(index, list(sample)).reshape(-1)
    shifted = found - sample if found.shape == sample.shape else np.asarray([0, 1])
    return int(shifted[0]) if (shifted == shifted[0]).all() else None


# -- operators that constant folding leaves alone -------------------------------------------


def _gather_nd(node: Node, array: Array, index: Array) -> Array:
    assert int(node.attrs.batch_dims) == 0, node
    return np.asarray(array[tuple(np.moveaxis(index, -1, 0))])


def _gather_elements(node: Node, array: Array, index: Array) -> Array:
    return np.take_along_axis(array, index, int(node.attrs.axis) % array.ndim)


def _cumsum(node: Node, array: Array) -> Array:
    return np.cumsum(array, axis=int(node.attrs.axis or 0)).astype(node.dtype)


_MORE: dict[str, Any] = {
    "gather_nd": _gather_nd,
    "gather_elements": _gather_elements,
    "cumsum": _cumsum,
    "match_cast": lambda node, array: array,
    "call_pure_packed": lambda node, array: array,
    "clip": lambda node, array: np.clip(array, node.args[1].value, node.args[2].value),
}
