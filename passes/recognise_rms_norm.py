"""Recognise a root mean square normalisation that is spelled out, with or without scale.

    x * rsqrt(mean(x * x) + eps) * gamma   ----->   nn.rms_norm(x, gamma)

Also x / sqrt(..), x * (1 / sqrt(..)) and power(x, 2). As with layer_norm, the normalised value
comes first (scale 1) and a following `* gamma` is drawn into it.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from graphc.ir import Model
from graphc.passes.evaluate import numpy_dtype
from graphc.passes.graph import Graph, rewrite
from graphc.passes.node import Node
from graphc.passes.pattern import number, op, wild
from graphc.passes.recognise_layer_norm import along, over_root, refused, squared
from graphc.passes.recognise_softmax import reduced_axes
from graphc.passes.report import Report

_x = wild("x")
_NORMALISED = over_root(_x, op("mean", squared(_x), name="mean") + number(name="eps"))
_SCALED = op("nn.rms_norm", _x, wild("gamma"), name="norm") * wild("scale")


def recognise_rms_norm(model: Model, report: Report) -> Model:
    """Recognise RMS normalisation in every function of the model; runs after layer_norm, whose
    centred value would match here too."""
    return rewrite(model, lambda graph: _recognise(graph, report))


def _recognise(graph: Graph, report: Report) -> None:
    for node in graph.walk():
        if node.op not in ("multiply", "divide"):
            continue
        new = _norm(graph, node, report)
        if new is not None:
            report.hit("recognise_rms_norm")
        else:
            new = _absorb(graph, node)
        if new is not None:
            graph.replace(node, new)


def _norm(graph: Graph, node: Node, report: Report) -> Node | None:
    match = _NORMALISED.find(graph, node)
    if match is None or not graph.shapes.same_all(match["x"].shape, node.shape):
        return None
    x, refusal = match["x"], refused(match["mean"])
    if refusal is not None:
        report.miss(f"rms_norm: {node.name} not recognised: {refusal}")
        return None
    axes = reduced_axes(match["mean"])
    if len(axes) == x.rank:
        report.miss(f"rms_norm: {node.name} not recognised: no axis is left for rows")
        return None
    shape = tuple(int(x.shape[axis]) for axis in axes)
    gamma = graph.constant(np.ones(shape, numpy_dtype(x.dtype)), "rms_norm.one")
    last = [axis - x.rank for axis in axes]
    epsilon = graph.scalar(match["eps"])
    return graph.emit(relax.op.nn.rms_norm(x.var, gamma.var, last, epsilon), node.name)


def _absorb(graph: Graph, node: Node) -> Node | None:
    match = _SCALED.find(graph, node)
    if match is None or not graph.used_once(match["norm"]) or not match["gamma"].is_constant:
        return None
    norm = match["norm"]
    axes = [int(axis) for axis in norm.attrs.axes]
    scale = along(graph, match["scale"], norm, len(axes))
    if scale is None or not bool(np.all(graph.value(match["gamma"]) == 1.0)):
        return None
    epsilon = float(norm.attrs.epsilon)
    return graph.emit(relax.op.nn.rms_norm(match["x"].var, scale.var, axes, epsilon), node.name)
