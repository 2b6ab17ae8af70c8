"""Recognise a layer normalisation that is spelled out, with or without scale and shift.

    c = x - mean(x); c / sqrt(mean(c * c) + eps) * gamma + beta   ----->   nn.layer_norm(x)

Also c * rsqrt(..), c * (1 / sqrt(..)) and power(c, 2). The normalised value becomes a layer_norm
of its own first (scale 1, shift 0); a following `* gamma` and `+ beta` are then drawn into it.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from graphc.ir import Model
from graphc.passes.cancel_layout import reshape_to
from graphc.passes.evaluate import numpy_dtype
from graphc.passes.graph import Graph, rewrite
from graphc.passes.node import Node
from graphc.passes.pattern import Match, Pattern, number, op, wild
from graphc.passes.recognise_softmax import reduced_axes
from graphc.passes.report import Report

_x, _c = wild("x"), wild("c")
_CENTRED = op("subtract", _x, op("mean", _x, name="mean"))


def squared(x: Pattern) -> Pattern:
    """x * x in its spellings."""
    return op("multiply", x, x) | op("power", x, 2.0) | op("square", x)


def over_root(x: Pattern, variance: Pattern) -> Pattern:
    """x / sqrt(variance) in its spellings."""
    root = op("sqrt", variance)
    inverse = op("rsqrt", variance) | op("divide", 1.0, root) | op("power", variance, -0.5)
    return op("divide", x, root) | op("multiply", x, inverse)


_NORMALISED = over_root(_c, op("mean", squared(_c), name="variance") + number(name="eps"))
_SCALED = op("nn.layer_norm", wild("x"), wild("gamma"), wild("beta"), name="norm") * wild("scale")
_SHIFTED = op("nn.layer_norm", wild("x"), wild("gamma"), wild("beta"), name="norm") + wild("shift")


def recognise_layer_norm(model: Model, report: Report) -> Model:
    """Recognise layer normalisation in every function of the model."""
    return rewrite(model, lambda graph: _recognise(graph, report))


def _recognise(graph: Graph, report: Report) -> None:
    for node in graph.walk():
        if node.op not in ("add", "multiply", "divide"):
            continue
        new = _norm(graph, node, report)
        if new is not None:
            report.hit("recognise_layer_norm")
        elif node.op == "multiply":
            new = _absorb(graph, node, _SCALED, "scale")
        elif node.op == "add":
            new = _absorb(graph, node, _SHIFTED, "shift")
        if new is not None:
            graph.replace(node, new)


def _norm(graph: Graph, node: Node, report: Report) -> Node | None:
    if node.dtype == "float64":
        return None  # TVM's operator is for float32
    outer = _NORMALISED.find(graph, node)
    inner = _CENTRED.find(graph, outer["c"]) if outer is not None else None
    if outer is None or inner is None:
        return None
    if not graph.shapes.same_all(inner["x"].shape, node.shape):
        return None  # epsilon is a constant of higher rank
    x, refusal = inner["x"], refused(inner["mean"], outer["variance"])
    if refusal is None and reduced_axes(inner["mean"]) != reduced_axes(outer["variance"]):
        refusal = "mean and variance are over different axes"
    if refusal is not None:
        report.miss(f"layer_norm: {node.name} not recognised: {refusal}")
        return None
    axes = reduced_axes(inner["mean"])
    shape = tuple(int(x.shape[axis]) for axis in axes)
    dtype = numpy_dtype(x.dtype)
    gamma = graph.constant(np.ones(shape, dtype), "layer_norm.one")
    beta = graph.constant(np.zeros(shape, dtype), "layer_norm.zero")
    epsilon = graph.scalar(outer["eps"])
    call = relax.op.nn.layer_norm(x.var, gamma.var, beta.var, _from_end(x, axes), epsilon)
    return graph.emit(call, node.name)


def refused(*reductions: Node) -> str | None:
    """Why reductions are not those of a norm: kept axes, the last ones, of fixed extent."""
    for reduction in reductions:
        axes, source = reduced_axes(reduction), reduction.inputs[0]
        if not bool(reduction.attrs.keepdims):
            return f"{reduction.name} drops the axes that it reduces"
        if axes != tuple(range(source.rank - len(axes), source.rank)):
            return f"{reduction.name} is over axes {axes} of {source.rank}, not over the last ones"
        if not all(isinstance(source.shape[axis], int) for axis in axes):
            return f"{reduction.name} is over an axis of symbolic extent"
    return None


def _from_end(node: Node, axes: tuple[int, ...]) -> list[int]:
    return [axis - node.rank for axis in axes]


def _absorb(graph: Graph, node: Node, pattern: Pattern, name: str) -> Node | None:
    """Draw a constant scale or shift over the normalised axes into the norm."""
    match = pattern.find(graph, node)
    if match is None or not _is_plain(graph, match, name):
        return None
    norm = match["norm"]
    axes = [int(axis) for axis in norm.attrs.axes]
    value = along(graph, match[name], norm, len(axes))
    if value is None:
        return None
    gamma, beta = match["gamma"], match["beta"]
    gamma, beta = (value, beta) if name == "scale" else (gamma, value)
    call = relax.op.nn.layer_norm(
        match["x"].var, gamma.var, beta.var, axes, float(norm.attrs.epsilon)
    )
    return graph.emit(call, node.name)


def _is_plain(graph: Graph, match: Match, name: str) -> bool:
    """Whether the norm still has shift 0 (and scale 1), and only this operator uses it."""
    neutral = {"beta": 0.0} if name == "shift" else {"beta": 0.0, "gamma": 1.0}
    return graph.used_once(match["norm"]) and all(
        match[part].is_constant and bool(np.all(graph.value(match[part]) == value))
        for part, value in neutral.items()
    )


def along(graph: Graph, value: Node, norm: Node, count: int) -> Node | None:
    """A constant that varies over the last `count` axes only, as a tensor of just those axes."""
    extents = norm.shape[norm.rank - count :]
    if not value.is_constant or value.rank > norm.rank:
        return None
    lead, last = value.shape[: -count or None], value.shape[-count:]
    if value.rank < count or any(dim != 1 for dim in lead) or last != extents:
        return None
    return reshape_to(graph, value, extents)
