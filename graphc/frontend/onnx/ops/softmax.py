"""Softmax and LogSoftmax, with the flattening of operator sets before 13."""

from __future__ import annotations

from collections.abc import Callable

from tvm import relax
from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.symbols import same
from graphc.frontend.onnx.table import Convert, Operator, Result, Table

_Softmax = Callable[[relax.Expr, int], relax.Expr]


def _along_axis(softmax: _Softmax) -> Convert:
    def convert(context: Context, node: Node) -> Result:
        value = node.input(0)
        node.need_float(value)
        axis = node.axis(node.integer("axis", -1), value.rank)
        return softmax(context.expr(value), axis)

    return convert


def _flattened(softmax: _Softmax) -> Convert:
    """Before 13: over the product of all dimensions from `axis` on."""

    def convert(context: Context, node: Node) -> Result:
        value = node.input(0)
        node.need_float(value)
        axis = node.axis(node.integer("axis", 1), value.rank)
        if all(same(extent, 1) for extent in value.shape[axis + 1 :]):
            return softmax(context.expr(value), axis)
        name = node.outputs[0]
        flat = [
            context.symbols.product(value.shape[:axis]),
            context.symbols.product(value.shape[axis:]),
        ]
        rows = context.emit(op.reshape(context.expr(value), tuple(flat)), f"{name}.rows", flat)
        done = context.emit(softmax(rows.var, 1), f"{name}.softmax")
        return context.emit(op.reshape(done.var, value.shape), name, value.shape)

    return convert


TABLE: Table = {
    ("", "Softmax", 1): Operator(_flattened(op.nn.softmax)),
    ("", "Softmax", 13): Operator(_along_axis(op.nn.softmax)),
    ("", "LogSoftmax", 1): Operator(_flattened(op.nn.log_softmax)),
    ("", "LogSoftmax", 13): Operator(_along_axis(op.nn.log_softmax)),
}
