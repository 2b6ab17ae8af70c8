"""Integer products in one form, whatever they were written as: uint8 x int8 weights -> int32.

    MatMulInteger(a, w)     ----->   matmul(a', w') - zero points x sums of the other side
    matmul(DQ(a), DQ(w))    ----->   float32(matmul(a', w') - ...) * (scale of a * scale of w)

with a' uint8 and w' int8 (a constant), see integer_product.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax

from graphc.ir import Model
from graphc.passes.graph import Graph, rewrite
from graphc.passes.integer_product import integer_product, weight_of
from graphc.passes.node import Node
from graphc.passes.report import Report

PRODUCT = "graphc.matmul_integer"
"""A kernel's attribute: the operands are followed by zero points of the left (1), the right (2)."""

DEQUANTIZE = "graphc.dequantize"
"""A kernel's attribute: a value, its scale and (1) its zero point."""

DEQUANTIZE_AXIS = "graphc.dequantize_axis"
"""The axis along which the scale differs; absent when there is one scale."""

op = relax.op


def recognise_integer_products(model: Model, report: Report) -> Model:
    """Rewrite every integer product with a constant right operand."""
    return rewrite(model, lambda graph: _recognise(graph, report))


def _recognise(graph: Graph, report: Report) -> None:
    for node in graph.walk():
        new = None
        if node.op == "call_tir":
            new = _product_kernel(graph, node, report)
        elif node.op == "matmul":
            new = _dequantized_product(graph, node, report)
        if new is not None:
            graph.replace(node, new)
            report.hit("recognise_integer_products")


# -- MatMulInteger ---------------------------------------------------------------------------


def _product_kernel(graph: Graph, node: Node, report: Report) -> Node | None:
    attrs = graph.kernel(node).attrs
    if attrs is None or PRODUCT not in attrs:
        return None
    flags, (left, right, *zeros) = int(attrs[PRODUCT]), node.inputs
    left_zero = zeros.pop(0) if flags & 1 else None
    right_zero = zeros.pop(0) if flags & 2 else None
    reason = _refusal(left, right, left_zero, right_zero)
    if reason:
        report.miss(f"recognise_integer_products: {node.name}: {reason}")
        return None
    zero = None if right_zero is None else graph.value(right_zero)
    weight = weight_of(right.name, graph.value(right), zero)
    a_zero = zero_point(graph, left_zero, left.rank)
    return graph.emit(integer_product(graph, left, a_zero, weight), node.name)


def zero_point(graph: Graph, zero: Node | None, rank: int) -> int | relax.Expr | None:
    """The zero point of the left operand: a number, an int32 expression, or None for 0."""
    if zero is None:
        return None
    number = graph.scalar(zero)
    if number is not None:
        return int(number)
    count = 1 if zero.rank == 0 or zero.static_shape == (1,) else zero.shape[0]
    shape = [1] * rank if count == 1 else [count, 1]
    return op.astype(op.reshape(zero.var, shape), "int32")


def _refusal(left: Node, right: Node, left_zero: Node | None, right_zero: Node | None) -> str:
    if not right.is_constant or right.rank != 2 or left.rank < 2 or left.is_constant:
        return "the right operand is no constant matrix"
    if right_zero is not None and not right_zero.is_constant:
        return "the right zero point is computed"
    if left_zero is not None and left_zero.rank and left_zero.static_shape != (1,):
        return "zero points for each row of a batch" if left.rank != 2 else ""
    return ""


# -- QDQ -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dequantized:
    """What a dequantise kernel reads; `axis` is that of its scales, None for one scale."""

    value: Node
    scale: Node
    zero: Node | None
    axis: int | None


def dequantized(graph: Graph, node: Node) -> Dequantized | None:
    """The parts of an 8-bit DequantizeLinear in float32."""
    if node.op != "call_tir" or node.dtype != "float32":
        return None
    attrs = graph.kernel(node).attrs
    if attrs is None or DEQUANTIZE not in attrs:
        return None
    value, scale, *zeros = node.inputs
    if value.dtype not in ("int8", "uint8") or scale.dtype != "float32":
        return None
    axis = int(attrs[DEQUANTIZE_AXIS]) if DEQUANTIZE_AXIS in attrs else None
    return Dequantized(value, scale, zeros[0] if zeros else None, axis)


def _dequantized_product(graph: Graph, node: Node, report: Report) -> Node | None:
    left = dequantized(graph, node.inputs[0])
    turned = node.inputs[1].op == "permute_dims" and node.inputs[1].rank == 2
    source = node.inputs[1].inputs[0] if turned else node.inputs[1]
    right = dequantized(graph, source)
    if left is None or right is None:
        return None
    value = right.value
    parts = (right.value, right.scale, *(() if right.zero is None else (right.zero,)))
    if left.axis is not None or left.value.rank < 2 or value.rank != 2:
        report.miss(f"recognise_integer_products: {node.name}: several scales on the left")
        return None
    if not all(part.is_constant for part in parts) or right.axis not in (None, 0 if turned else 1):
        report.miss(f"recognise_integer_products: {node.name}: scales differ along the depth")
        return None
    codes = graph.value(value)
    zero = None if right.zero is None else graph.value(right.zero)
    weight = weight_of(value.name, codes.T if turned else codes, zero)
    a_zero = zero_point(graph, left.zero, node.rank)
    sums = integer_product(graph, left.value, a_zero, weight)
    scales = graph.value(right.scale).reshape(-1)
    own = graph.scalar(left.scale)
    if own is not None:
        factor = graph.constant(np.float32(own) * scales, f"{value.name}.scales").var
    else:
        factor = op.multiply(
            op.reshape(left.scale.var, [1] * node.rank),
            graph.constant(scales, f"{value.name}.scales").var,
        )
    return graph.emit(op.multiply(op.astype(sums, "float32"), factor), node.name)
