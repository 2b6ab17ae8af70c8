"""Compute each value once and store each weight once.

    m1 = where(mask, 0, -inf); m2 = where(mask, 0, -inf)   ----->   m1 for both
    w1 and w2 with equal bytes                             ----->   w1 for both

The masks and position indices that an export repeats in every layer meet here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm_ffi

from graphc.ir import Model
from graphc.passes.graph import Graph, rebuilt, rewrite
from graphc.passes.node import Node
from graphc.passes.report import Report
from graphc.weights_file import release

_SAMPLES = 64


def merge_duplicates(model: Model, report: Report) -> Model:
    """Merge equal weights, then equal operators on equal operands."""
    return rewrite(model, lambda graph: _merge(graph, report))


def _merge(graph: Graph, report: Report) -> None:
    _merge_params(graph, report)
    known: dict[int, list[tuple[Any, Node]]] = {}
    for node in graph.walk():
        if node.op == "match_cast":
            continue
        call = rebuilt(node)
        alike = known.setdefault(tvm_ffi.structural_hash(call), [])
        for other_call, other in alike:
            if tvm_ffi.structural_equal(other_call, call):
                graph.replace(node, other)
                report.hit("merge_operators")
                break
        else:
            alike.append((call, node))


def _merge_params(graph: Graph, report: Report) -> None:
    known: dict[tuple[Any, ...], list[Node]] = {}
    for node in graph.nodes():
        if node.op != "param" or node.name in graph.quantized:
            continue  # reading a quantised weight would expand it
        array = graph.value(node)
        alike = known.setdefault((array.dtype, array.shape, _sample(array)), [])
        for other in alike:
            if _same_bytes(graph.value(other), array):
                graph.at(node)
                graph.replace(node, other)
                report.hit("merge_weights")
                break
        else:
            alike.append(node)


def _sample(array: np.ndarray) -> bytes:
    """A few elements, so that weights are read whole only when they are likely to be equal."""
    flat = array.reshape(-1)
    sample = flat[:: max(1, flat.size // _SAMPLES)].tobytes()
    release(array)  # each element read brought its neighbourhood into memory
    return sample


def _same_bytes(left: np.ndarray, right: np.ndarray) -> bool:
    """Whether two arrays of one type and shape are equal bit by bit (NaN too)."""
    if left is right:
        return True
    wide = f"u{left.dtype.itemsize}"
    return bool(np.array_equal(left.view(wide), right.view(wide)))
