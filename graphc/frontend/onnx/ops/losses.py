"""NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss."""

from __future__ import annotations

from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.table import Operator, Result, Table
from graphc.frontend.onnx.values import TensorValue, Value
from graphc.frontend.onnx.writer import Writer


def _likelihood(context: Context, node: Node) -> Result:
    """-w[t] * x[n, t, d] reduced over n and d; 0 where t is ignore_index."""
    value = node.input(0)
    node.need_float(value)
    return _loss(context, node, value)


def _cross_entropy(context: Context, node: Node) -> Result:
    """The same of the logarithm of the softmax over the classes, which is the second result."""
    value = node.input(0)
    node.need_float(value)
    node.need_rank(value, 2)
    w = Writer(context, node)
    if value.dtype in ("float16", "bfloat16"):
        logs = w.cast(w(lambda x: op.nn.log_softmax(x, 1), w.cast(value, "float32")), value.dtype)
    else:
        logs = w(lambda x: op.nn.log_softmax(x, 1), value)
    return [_loss(context, node, logs), logs][: len(node.outputs)]


def _loss(context: Context, node: Node, value: Value) -> Value:
    node.need_rank(value, 2)
    w = Writer(context, node)
    reduction = node.choice("reduction", "mean", ("none", "sum", "mean"))
    target, weight = _targets(context, node, value, w), _class_weights(context, node, value)
    ignored: Value | None = None
    if node.has("ignore_index"):
        index = w.full(node.integer("ignore_index"), target.dtype)
        ignored = w(op.equal, target, index)
        target = w.where(ignored, w.full(0, target.dtype), target)
    classes = context.indices(node, target, value.shape[1])
    safe: Value = TensorValue(f"{target.name}.safe", target.dtype, target.shape, classes)
    column = w.reshape(safe, [safe.shape[0], 1, *safe.shape[1:]])
    picked = w(lambda x, at: op.gather_elements(x, at, 1), value, column)
    loss = w(op.negative, w.reshape(picked, safe.shape))
    zero = w.full(0, value.dtype)
    weights: Value | None = None
    if weight is not None:
        weights = w(lambda table, at: op.take(table, at, axis=0, mode="fast"), weight, safe)
        if ignored is not None:
            weights = w.where(ignored, zero, weights)
        loss = w.binary(op.multiply, loss, weights)
    if ignored is not None:
        loss = w.where(ignored, zero, loss)
    if reduction == "none":
        return loss
    total = w(op.sum, loss)
    if reduction == "sum":
        return total
    if weights is not None:
        return w(op.divide, total, w(op.sum, weights))
    if ignored is not None:
        counted = w.cast(w(op.logical_not, ignored), value.dtype)
        return w(op.divide, total, w(op.sum, counted))
    return w(op.mean, loss)


def _targets(context: Context, node: Node, value: Value, w: Writer) -> Value:
    target = node.input(1)
    shape = (value.shape[0], *value.shape[2:])
    return context.cast_shape(target, shape, node.label)


def _class_weights(context: Context, node: Node, value: Value) -> Value | None:
    weight = node.optional(2)
    if weight is not None:
        node.same_dtype(value, weight)
        weight = context.cast_shape(weight, (value.shape[1],), node.label)
    return weight


TABLE: Table = {
    ("", "NegativeLogLikelihoodLoss", 12): Operator(_likelihood),
    ("", "SoftmaxCrossEntropyLoss", 12): Operator(_cross_entropy),
}
