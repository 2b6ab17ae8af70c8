"""Fold batch normalisation into the convolution before it.

    batch_norm(conv(x, w) + b)    ----->   conv(x, w * scale) + (b * scale + shift)
    batch_norm(x)                 ----->   x * scale + shift

with scale = gamma / sqrt(var + eps) and shift = beta - mean * scale, computed in float64. The
same is done where the exporter wrote the multiplication by a constant per channel itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax

from graphc.ir import Model
from graphc.passes.evaluate import Array, numpy_dtype
from graphc.passes.graph import Graph, Node, rewrite
from graphc.passes.report import Report

_CHANNEL = 1  # of the data, in NCW, NCHW and NCDHW
_WEIGHT_CHANNEL = {
    "nn.conv1d": 0,
    "nn.conv2d": 0,
    "nn.conv3d": 0,
    "nn.conv1d_transpose": 1,
    "nn.conv2d_transpose": 1,
    "nn.conv3d_transpose": 1,
}


@dataclass(frozen=True)
class _Convolved:
    """conv(x, w) + bias, the bias being None if nothing is added."""

    conv: Node
    bias: Array | None


def fold_batch_norm(model: Model, report: Report) -> Model:
    """Fold batch normalisation in every function of the model."""
    return rewrite(model, lambda graph: _fold(graph, report))


def _fold(graph: Graph, report: Report) -> None:
    for node in graph.walk():
        new = None
        if node.op == "tuple_get_item" and node.inputs[0].op == "nn.batch_norm":
            new = _batch_norm(graph, node, report)
        elif node.op == "multiply":
            new = _scale(graph, node, report)
        if new is not None:
            graph.replace(node, new)


def _batch_norm(graph: Graph, node: Node, report: Report) -> Node | None:
    norm = node.inputs[0]
    refusal = _refusal(graph, node)
    if refusal is not None:
        report.miss(f"fold_batch_norm: {norm.name} not folded: {refusal}")
        return None
    x = norm.inputs[0]
    gamma, beta, mean, variance = (
        graph.value(source).astype(np.float64).reshape(-1) for source in norm.inputs[1:]
    )
    scale = gamma if bool(norm.attrs.scale) else np.ones_like(gamma)
    scale = scale / np.sqrt(variance + float(norm.attrs.epsilon))
    shift = (beta if bool(norm.attrs.center) else np.zeros_like(beta)) - mean * scale
    found = _convolved(graph, x)
    if found is None:
        report.hit("decompose_batch_norm")
        product = relax.op.multiply(x.var, _per_channel(graph, scale, x, f"{node.name}.scale").var)
        addend = _per_channel(graph, shift, x, f"{node.name}.shift")
        return graph.emit(relax.op.add(product, addend.var), node.name)
    report.hit("fold_batch_norm")
    return _scaled(graph, found, scale, shift, node.name)


def _refusal(graph: Graph, node: Node) -> str | None:
    norm = node.inputs[0]
    if node.expr.index != 0 or bool(norm.attrs.training):
        return "it updates its statistics"
    if int(norm.attrs.axis) % norm.inputs[0].rank != _CHANNEL:
        return f"its channels are on axis {norm.attrs.axis}"
    if not all(source.is_constant for source in norm.inputs[1:]):
        return "its statistics are not constant"
    return None


def _scale(graph: Graph, node: Node, report: Report) -> Node | None:
    """(conv + b) * c with one number per channel."""
    for source, constant in (node.inputs, node.inputs[::-1]):
        found = _convolved(graph, source)
        if found is None or not graph.shapes.same_all(source.shape, node.shape):
            continue
        factor = _channels(graph, constant, source)
        if factor is not None:
            report.hit("fold_scale_into_convolution")
            return _scaled(graph, found, factor, None, node.name)
    return None


def _convolved(graph: Graph, node: Node) -> _Convolved | None:
    """A convolution with constant weights that nothing else uses, and its constant bias."""
    bias: Array | None = None
    if node.op == "add":
        if not graph.used_once(node):
            return None
        for source, constant in (node.inputs, node.inputs[::-1]):
            if source.op in _WEIGHT_CHANNEL:
                bias = _channels(graph, constant, node)
                if bias is not None:
                    node = source
                    break
        else:
            return None
    if node.op not in _WEIGHT_CHANNEL or not graph.used_once(node):
        return None
    weight = node.inputs[1]
    if not weight.is_constant or not str(node.attrs.data_layout).startswith("NC"):
        return None
    if node.op.endswith("_transpose") and int(node.attrs.groups) != 1:
        return None
    return _Convolved(node, bias)


def _channels(graph: Graph, constant: Node, like: Node) -> Array | None:
    """One number per channel of `like` from a constant that broadcasts to it, else None."""
    if not constant.is_constant or constant.rank > like.rank:
        return None
    shape = [1] * (like.rank - constant.rank) + list(constant.shape)
    channels = like.shape[_CHANNEL]
    others = [dim for axis, dim in enumerate(shape) if axis != _CHANNEL]
    if any(dim != 1 for dim in others) or shape[_CHANNEL] not in (1, channels):
        return None
    values = graph.value(constant).astype(np.float64).reshape(-1)
    return np.broadcast_to(values, (int(channels),))


def _scaled(graph: Graph, found: _Convolved, scale: Array, shift: Array | None, name: str) -> Node:
    """(conv + bias) * scale + shift with scale and shift in the weights."""
    conv = found.conv
    x, weight = conv.inputs
    along = [1] * weight.rank
    along[_WEIGHT_CHANNEL[conv.op]] = -1
    value = graph.value(weight)
    scaled = (value.astype(np.float64) * scale.reshape(along)).astype(value.dtype)
    folded = graph.constant(scaled, weight.name)
    call = graph.with_inputs(conv, (x, folded))
    bias = np.zeros_like(scale) if found.bias is None else found.bias * scale
    if shift is not None:
        bias = bias + shift
    if found.bias is None and shift is None:
        return call
    addend = _per_channel(graph, bias, call, f"{name}.bias")
    return graph.emit(relax.op.add(call.var, addend.var), name)


def _per_channel(graph: Graph, values: Array, like: Node, name: str) -> Node:
    """A constant of one value per channel that broadcasts to `like`."""
    shape = [1] * like.rank
    shape[_CHANNEL] = values.size
    return graph.constant(values.astype(numpy_dtype(like.dtype)).reshape(shape), name)
