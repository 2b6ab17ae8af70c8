"""Gelu in its variants, bias and residual additions, and softmax with a bias."""

from __future__ import annotations

from tvm import relax
from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.contrib.formula import DOMAIN, Formula, entry, fixed, shared
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.table import Result, Table
from graphc.frontend.onnx.values import Value


def _biased(f: Formula, value: Value, bias: Value | None) -> relax.Expr:
    """x + bias, a vector along the last axis."""
    f.node.need_float(value)
    if bias is None:
        return f.context.expr(value)
    f.node.need_rank(value, 1)
    f.node.same_dtype(value, bias)
    return f(op.add, f.context.expr(value), f.fit(bias, value.shape[-1:], "the bias"))


def _gelu(context: Context, node: Node) -> Result:
    node.need_float(node.input(0))
    return op.nn.gelu(context.expr(node.input(0)))


def _bias_gelu(context: Context, node: Node) -> Result:
    return op.nn.gelu(_biased(Formula(context, node), node.input(0), node.input(1)))


def _fast_gelu(context: Context, node: Node) -> Result:
    return op.nn.gelu_tanh(_biased(Formula(context, node), node.input(0), node.optional(1)))


def _quick_gelu(context: Context, node: Node) -> Result:
    """x * sigmoid(alpha * x)"""
    f, value = Formula(context, node), node.input(0)
    node.need_float(value)
    x, alpha = context.expr(value), node.number("alpha", 1.702)
    if alpha == 1.0:
        return op.nn.silu(x)
    return op.multiply(x, f(op.sigmoid, f(op.multiply, x, alpha)))


def _bias_split_gelu(context: Context, node: Node) -> Result:
    """left * gelu(right) of the halves of x + bias."""
    f, value = Formula(context, node), node.input(0)
    node.need_rank(value, 3, 3)
    half = shared(node, fixed(node, value.shape[-1], "its last axis"), 2, "the last axis of")
    x = _biased(f, value, node.input(1))
    left, right = f.slice(x, 2, 0, half), f.slice(x, 2, half, 2 * half)
    return op.multiply(left, f(op.nn.gelu, right))


def _bias_add(context: Context, node: Node) -> Result:
    """x + bias + skip"""
    f, value, skip = Formula(context, node), node.input(0), node.input(2)
    node.need_rank(value, 3, 3)
    node.same_dtype(value, skip)
    return op.add(_biased(f, value, node.input(1)), f.fit(skip, value.shape, "the skip input"))


def _bias_softmax(context: Context, node: Node) -> Result:
    """softmax(data + bias) over all axes from `axis` on.

    The bias is broadcast along leading axes, or (inner) along the ones between its own leading
    axes and `axis`, where it has ones.
    """
    f, value, bias = Formula(context, node), node.input(0), node.input(1)
    node.need_float(value)
    node.same_dtype(value, bias)
    axis = node.axis(node.integer("axis", 1), value.rank)
    exprs, shape = context.broadcast(node, value, bias)
    if len(shape) != value.rank:
        raise node.error(f"its bias has {bias.rank} dimensions, the data only {value.rank}")
    total = f(op.add, *exprs, shape=value.shape)
    if axis == value.rank - 1:
        return op.nn.softmax(total, -1)
    flat = [context.symbols.product(part) for part in (value.shape[:axis], value.shape[axis:])]
    return op.reshape(f(op.nn.softmax, f.reshape(total, flat), 1), value.shape)


TABLE: Table = {
    (DOMAIN, "Gelu", 1): entry(_gelu, inputs=1),
    (DOMAIN, "BiasGelu", 1): entry(_bias_gelu, inputs=2),
    (DOMAIN, "FastGelu", 1): entry(_fast_gelu, inputs=2),
    (DOMAIN, "QuickGelu", 1): entry(_quick_gelu, "alpha", inputs=1),
    (DOMAIN, "BiasSplitGelu", 1): entry(_bias_split_gelu, inputs=2),
    (DOMAIN, "BiasAdd", 1): entry(_bias_add, inputs=3),
    (DOMAIN, "BiasSoftmax", 1): entry(_bias_softmax, "axis is_inner_broadcast", inputs=2),
}
