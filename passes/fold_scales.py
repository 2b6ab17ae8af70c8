"""Fold scales and shifts per channel into the weights before them: batch norm, layer scale.

    batch_norm(conv(x, w) + b)    ----->   conv(x, w * scale) + (b * scale + shift)
    (x @ w + b) * c               ----->   x @ (w * c) + b * c
    (x @ w + b) + c               ----->   x @ w + (b + c)
    batch_norm(x)                 ----->   x * scale + shift

with scale = gamma / sqrt(var + eps) and shift = beta - mean * scale. Products are computed in
float64 and rounded once, so results move by rounding only. Weights that something else reads too
are left alone: they would have to be stored twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax

from graphc.ir import Model
from graphc.passes.evaluate import Array, numpy_dtype
from graphc.passes.graph import Graph, rewrite
from graphc.passes.node import Node
from graphc.passes.report import Report

# The axis of the output channels in the weights.
_WEIGHT_AXIS = {
    "matmul": 1,
    "nn.conv1d": 0,
    "nn.conv2d": 0,
    "nn.conv3d": 0,
    "nn.conv1d_transpose": 1,
    "nn.conv2d_transpose": 1,
    "nn.conv3d_transpose": 1,
}


@dataclass(frozen=True)
class _Product:
    """x @ w + bias, or conv(x, w) + bias; the bias is None if nothing is added."""

    node: Node
    bias: Array | None

    @property
    def axis(self) -> int:
        """The axis of the channels in the result."""
        return self.node.rank - 1 if self.node.op == "matmul" else 1


def fold_scales(model: Model, report: Report) -> Model:
    """Fold scales, shifts and batch normalisation in every function of the model."""
    return rewrite(model, lambda graph: _fold(graph, report))


def _fold(graph: Graph, report: Report) -> None:
    for node in graph.walk():
        new = None
        if node.op == "tuple_get_item" and node.inputs[0].op == "nn.batch_norm":
            new = _batch_norm(graph, node, report)
        elif node.op == "multiply":
            new = _scale(graph, node, report)
        elif node.op == "add":
            new = _shift(graph, node, report)
        if new is not None:
            graph.replace(node, new)


def _batch_norm(graph: Graph, node: Node, report: Report) -> Node | None:
    norm = node.inputs[0]
    refusal = _refusal(node)
    if refusal is not None:
        report.miss(f"fold_scales: {norm.name} not folded: {refusal}")
        return None
    x = norm.inputs[0]
    gamma, beta, mean, variance = (
        graph.value(source).astype(np.float64).reshape(-1) for source in norm.inputs[1:]
    )
    scale = gamma if bool(norm.attrs.scale) else np.ones_like(gamma)
    scale = scale / np.sqrt(variance + float(norm.attrs.epsilon))
    shift = (beta if bool(norm.attrs.center) else np.zeros_like(beta)) - mean * scale
    found = _product(graph, x)
    if found is not None and found.axis == 1:
        report.hit("fold_batch_norm")
        return _scaled(graph, found, scale, shift, node.name)
    report.hit("decompose_batch_norm")
    factor = _per_channel(graph, scale, x, 1, f"{node.name}.scale")
    addend = _per_channel(graph, shift, x, 1, f"{node.name}.shift")
    product = relax.op.multiply(x.var, factor.var)
    return graph.emit(relax.op.add(product, addend.var), node.name)


def _refusal(node: Node) -> str | None:
    norm = node.inputs[0]
    if node.expr.index != 0 or bool(norm.attrs.training):
        return "it updates its statistics"
    if int(norm.attrs.axis) % norm.inputs[0].rank != 1:
        return f"its channels are on axis {norm.attrs.axis}"
    if not all(source.is_constant for source in norm.inputs[1:]):
        return "its statistics are not constant"
    return None


def _scale(graph: Graph, node: Node, report: Report) -> Node | None:
    """(product + b) * c with one number per channel."""
    found, factor = _with_constant(graph, node)
    if found is None or factor is None or factor.size == 1:
        return None  # one number for all: attention wants to see it, fusion does the rest
    report.hit("fold_scale")
    return _scaled(graph, found, factor, None, node.name)


def _shift(graph: Graph, node: Node, report: Report) -> Node | None:
    """(product + b) + c with one number per channel."""
    found, addend = _with_constant(graph, node)
    if found is None or found.bias is None or addend is None:
        return None
    report.hit("fold_shift")
    bias = _per_channel(graph, found.bias + addend, found.node, found.axis, f"{node.name}.bias")
    return graph.emit(relax.op.add(found.node.var, bias.var), node.name)


def _with_constant(graph: Graph, node: Node) -> tuple[_Product | None, Array | None]:
    """The product and the numbers per channel that an operator combines it with."""
    for source, constant in (node.inputs, node.inputs[::-1]):
        if constant.is_constant and graph.shapes.same_all(source.shape, node.shape):
            found = _product(graph, source)
            if found is not None:
                return found, _channels(graph, constant, source, found.axis)
    return None, None


def _product(graph: Graph, node: Node) -> _Product | None:
    """A matmul or convolution with weights that nothing else uses, and its constant bias."""
    if not graph.used_once(node):
        return None
    if node.op != "add":
        return _Product(node, None) if _has_own_weights(graph, node) else None
    for source, constant in (node.inputs, node.inputs[::-1]):
        if _has_own_weights(graph, source) and graph.used_once(source):
            found = _Product(source, None)
            bias = _channels(graph, constant, node, found.axis)
            if bias is not None:
                return _Product(source, np.broadcast_to(bias, (int(node.shape[found.axis]),)))
    return None


def _has_own_weights(graph: Graph, node: Node) -> bool:
    if node.op not in _WEIGHT_AXIS:
        return False
    weight = node.inputs[1]
    if not weight.is_constant or not graph.used_once(weight) or weight.name in graph.quantized:
        return False
    if node.op == "matmul":
        return weight.rank == 2 and node.rank >= 2
    plain = str(node.attrs.data_layout).startswith("NC")
    return plain and not (node.op.endswith("_transpose") and int(node.attrs.groups) != 1)


def _channels(graph: Graph, constant: Node, like: Node, axis: int) -> Array | None:
    """One number per channel (or one for all) from a constant that broadcasts to `like`."""
    if not constant.is_constant or constant.rank > like.rank:
        return None
    shape = [1] * (like.rank - constant.rank) + list(constant.shape)
    if any(dim != 1 for position, dim in enumerate(shape) if position != axis):
        return None
    if shape[axis] not in (1, like.shape[axis]):
        return None
    return graph.value(constant).astype(np.float64).reshape(-1)


def _scaled(graph: Graph, found: _Product, scale: Array, shift: Array | None, name: str) -> Node:
    """(product + bias) * scale + shift with scale and shift in the weights."""
    x, weight = found.node.inputs
    along = [1] * weight.rank
    along[_WEIGHT_AXIS[found.node.op]] = -1
    value = graph.value(weight)
    scaled = (value.astype(np.float64) * scale.reshape(along)).astype(value.dtype)
    product = graph.with_inputs(found.node, (x, graph.constant(scaled, weight.name)))
    if found.bias is None and shift is None:
        return product
    bias = np.zeros_like(scale) if found.bias is None else found.bias * scale
    if shift is not None:
        bias = bias + shift
    addend = _per_channel(graph, bias, product, found.axis, f"{name}.bias")
    return graph.emit(relax.op.add(product.var, addend.var), name)


def _per_channel(graph: Graph, values: Array, like: Node, axis: int, name: str) -> Node:
    """A constant of one value per channel that broadcasts to `like`."""
    shape = [1] * like.rank
    shape[axis] = values.size
    array = values.astype(numpy_dtype(like.dtype))
    return graph.constant(array if axis == like.rank - 1 else array.reshape(shape), name)
