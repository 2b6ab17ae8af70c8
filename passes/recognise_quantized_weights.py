"""Weights that are written as 8-bit numbers times their scales keep their codes.

    astype(w int8 [K, N]) * scale [1, N]    ----->   a weight [K, N] of 8 bits        (products)
    astype(w int8 [N, K]) * scale [N, 1]    ----->   a weight [N, K], seen transposed (row gathers)

What `keep_quantized` finds to be read otherwise becomes plain again. Activations stay float unless
the option `activations` says int8.
"""

from __future__ import annotations

import functools

import numpy as np

from graphc.ir import Model, QuantizedWeight, Source
from graphc.passes.graph import Graph, rewrite
from graphc.passes.node import Node
from graphc.passes.report import Report


def recognise_quantized_weights(model: Model, report: Report) -> Model:
    """Rewrite every function of the model."""
    return rewrite(model, lambda graph: _recognise(graph, report))


def _recognise(graph: Graph, report: Report) -> None:
    for node in graph.walk():
        if node.op != "multiply" or node.dtype != "float32" or node.rank != 2:
            continue
        weight = _scaled(graph, *node.inputs) or _scaled(graph, *reversed(node.inputs))
        if weight is None:
            continue
        shape = (int(node.shape[0]), int(node.shape[1]))
        made = graph.param(f"{node.name}.plain", weight.plain, shape, "float32")
        graph.quantized[made.name] = weight
        graph.replace(node, made)
        report.hit("recognise_quantized_weights")


def _scaled(graph: Graph, cast: Node, scale: Node) -> QuantizedWeight | None:
    if cast.op != "astype" or not scale.is_constant or scale.dtype != "float32":
        return None
    (codes,) = cast.inputs
    if codes.op != "param" or codes.dtype != "int8" or codes.static_shape is None:
        return None
    rows, columns = codes.static_shape
    read = functools.partial(graph.params.__getitem__, codes.name)
    if scale.static_shape in ((1, columns), (columns,)):
        scales = graph.value(scale).reshape(1, columns)
        return _weight(read, scales, rows, transposed=False)
    if scale.static_shape == (rows, 1):
        scales = graph.value(scale).reshape(1, rows)
        return _weight(lambda: np.ascontiguousarray(read().T), scales, columns, transposed=True)
    return None


def _weight(codes: Source, scales: np.ndarray, depth: int, transposed: bool) -> QuantizedWeight:
    return QuantizedWeight(
        codes=codes,
        scales=scales,
        minima=None,
        group=depth,
        bits=8,
        transposed=transposed,
        activation="float",
    )
