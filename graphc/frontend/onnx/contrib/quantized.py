"""8-bit operators: integer products with float results, and pointwise ones between quantised sides.

Products are exact in int32. Pointwise operators are their float form between the formulas

    dequantise   (x - zero) * scale             quantise   clamp(round(y / scale) + zero)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from tvm import relax
from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.contrib.attention import merged_attention
from graphc.frontend.onnx.contrib.formula import DOMAIN, Formula, entry, is_scalar
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.ops import integer, movement, pooling, quantize, unary
from graphc.frontend.onnx.table import Convert, Result, Table
from graphc.frontend.onnx.values import KnownValue, TensorValue, Value

_BYTES = ("int8", "uint8")


# -- products ------------------------------------------------------------------------------


def _product(
    f: Formula,
    operands: tuple[Value, Value],
    zeros: tuple[Value | None, Value | None],
    scales: tuple[Value, Value],
) -> TensorValue:
    """(a - zero) (b - zero) times both scales; b's may differ from column to column."""
    sums = f.standard(integer.TABLE, "MatMulInteger", 10, [*operands, *zeros])
    left, right = (_scale(f, scale) for scale in scales)
    factor = f(op.multiply, left, right, shape=None if is_scalar(scales[1]) else scales[1].shape)
    return f.known(f(op.multiply, f.cast(sums.var, "float32"), factor, shape=sums.shape))


def _scale(f: Formula, scale: Value) -> relax.Expr:
    """A scalar, or a vector along the columns."""
    f.node.need_float(scale)
    expr = f.context.expr(scale)
    if is_scalar(scale):
        return f.reshape(expr, []) if scale.rank else expr
    f.node.need_rank(scale, 1, 1)
    return expr


def _biased(f: Formula, product: TensorValue, bias: Value | None) -> relax.Expr:
    if bias is None:
        return op.reshape(product.var, product.shape)
    return op.add(product.var, f.fit(bias, product.shape[-1:], "the bias"))


def _matmul_integer_to_float(context: Context, node: Node) -> Result:
    f = Formula(context, node)
    if not is_scalar(node.input(2)):
        raise node.unsupported("one scale for each row of A is not compiled")
    zeros = (node.optional(4), node.optional(5))
    made = _product(f, (node.input(0), node.input(1)), zeros, (node.input(2), node.input(3)))
    return _biased(f, made, node.optional(6))


def _dynamic_quantize_matmul(context: Context, node: Node) -> Result:
    """A is quantised to uint8 with the scale and zero point of its own range."""
    f = Formula(context, node)
    quantised, scale, zero = f.standards(
        quantize.TABLE, "DynamicQuantizeLinear", 11, [node.input(0)], 3
    )
    zeros = (zero, node.optional(3))
    made = _product(f, (quantised, node.input(1)), zeros, (scale, node.input(2)))
    return _biased(f, made, node.optional(4))


def _q_attention(context: Context, node: Node) -> Result:
    """Attention whose projection is an integer product."""
    f = Formula(context, node)
    if node.integer("do_rotary", 0) or node.integer("past_present_share_buffer", 0):
        raise node.unsupported("do_rotary and past_present_share_buffer are not compiled")
    node.need_rank(node.input(0), 3, 3)
    operands = (node.input(0), node.input(1))
    zeros, scales = (node.optional(6), node.optional(7)), (node.input(3), node.input(4))
    made = _product(f, operands, zeros, scales)
    total = f.bind(_biased(f, made, node.input(2)))
    return merged_attention(f, total, made.shape, node.optional(5), node.optional(8), None)


def _q_gemm(context: Context, node: Node) -> Result:
    """alpha * a_scale * b_scale * (A' B' + C), quantised where y_scale is given."""
    f, sides = Formula(context, node), []
    for index, name in ((0, "transA"), (3, "transB")):
        value = node.input(index)
        node.need_rank(value, 2, 2)
        if node.integer(name, 0):
            value = f.value(op.permute_dims(context.expr(value), [1, 0]))
        sides.append(value)
    zeros = [node.input(2), node.input(5)]
    sums = f.standard(integer.TABLE, "MatMulInteger", 10, [*sides, *zeros])
    total, bias = sums.var, node.optional(6)
    if bias is not None:
        total = f(op.add, total, context.aligned(node.label, bias, sums.shape), shape=sums.shape)
    factor = f(op.multiply, _scale(f, node.input(1)), _scale(f, node.input(4)))
    factor = f(op.multiply, factor, node.number("alpha", 1.0))
    y = f(op.multiply, f.cast(total, "float32"), factor, shape=sums.shape)
    if node.optional(7) is None:
        return op.reshape(y, sums.shape)
    return _quantised(f, y, node.input(7), node.optional(8), node.input(0).dtype)


# -- pointwise -----------------------------------------------------------------------------


def _dequantised(f: Formula, index: int) -> TensorValue:
    """Input `index` with the scale and zero point that follow it."""
    value, scale, zero = (f.node.input(index), f.node.input(index + 1), f.node.optional(index + 2))
    if value.dtype not in _BYTES or not is_scalar(scale) or (zero and not is_scalar(zero)):
        raise f.node.error(f"input {index} is not 8-bit with one scale and one zero point")
    return f.standard(quantize.TABLE, "DequantizeLinear", 10, [value, scale, zero])


def _quantised(
    f: Formula, y: relax.Expr, scale: Value, zero: Value | None, dtype: str
) -> TensorValue:
    if zero is None:
        zero = KnownValue(f"{f.name}.zero", dtype, np.zeros((), dtype))
    if zero.dtype != dtype or not is_scalar(scale) or not is_scalar(zero):
        raise f.node.error("its result is not 8-bit with one scale and one zero point")
    return f.standard(quantize.TABLE, "QuantizeLinear", 10, [y, scale, zero])


def _pair(operation: Callable[..., relax.Expr]) -> Convert:
    def convert(context: Context, node: Node) -> Result:
        f = Formula(context, node)
        exprs, shape = context.broadcast(node, _dequantised(f, 0), _dequantised(f, 3))
        y = f(operation, *exprs, shape=shape)
        return _quantised(f, y, node.input(6), node.optional(7), node.input(0).dtype)

    return convert


def _single(operation: Callable[[Formula, TensorValue], relax.Expr]) -> Convert:
    def convert(context: Context, node: Node) -> Result:
        f = Formula(context, node)
        y = operation(f, _dequantised(f, 0))
        return _quantised(f, y, node.input(3), node.optional(4), node.input(0).dtype)

    return convert


def _sigmoid(f: Formula, x: TensorValue) -> relax.Expr:
    return f(op.sigmoid, x.var)


def _leaky_relu(f: Formula, x: TensorValue) -> relax.Expr:
    alpha = f.node.number("alpha", 0.01)
    return f.standard(unary.TABLE, "LeakyRelu", 6, [x], alpha=alpha).var


def _softmax(f: Formula, x: TensorValue) -> relax.Expr:
    """Along one axis from operator set 13 on, over all axes from `axis` on before."""
    new = f.node.integer("opset") >= 13
    axis = f.node.axis(f.node.integer("axis", -1 if new else 1), x.rank)
    if new or axis == x.rank - 1:
        return f(op.nn.softmax, x.var, axis)
    flat = [f.context.symbols.product(part) for part in (x.shape[:axis], x.shape[axis:])]
    return f.reshape(f(op.nn.softmax, f.reshape(x.var, flat), 1), x.shape)


def _global_average(f: Formula, x: TensorValue) -> relax.Expr:
    f.node.need_rank(x, 3)
    last = bool(f.node.integer("channels_last", 0))
    axes = list(range(1, x.rank - 1)) if last else list(range(2, x.rank))
    return f(op.mean, x.var, axes, keepdims=True)


def _average(f: Formula, x: TensorValue) -> relax.Expr:
    last = bool(f.node.integer("channels_last", 0))
    names = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
    given = {name: f.node.attributes[name] for name in names if f.node.has(name)}
    order = [0, x.rank - 1, *range(1, x.rank - 1)]
    moved: Value | relax.Expr = f(op.permute_dims, x.var, order) if last else x
    pooled = f.standard(pooling.TABLE, "AveragePool", 7, [moved], **given)
    return f(op.permute_dims, pooled.var, [0, *range(2, x.rank), 1]) if last else pooled.var


def _concat(context: Context, node: Node) -> Result:
    """Inputs: the result's scale and zero point, then a value, a scale and a zero point each."""
    f = Formula(context, node)
    if len(node.inputs) < 5 or (len(node.inputs) - 2) % 3:
        raise node.error(f"it has {len(node.inputs)} inputs, not 2 and 3 for each value")
    parts = [_dequantised(f, index) for index in range(2, len(node.inputs), 3)]
    axis = node.integer("axis")
    whole = f.standard(movement.TABLE, "Concat", 4, parts, axis=axis)
    return _quantised(f, whole.var, node.input(0), node.input(1), node.input(2).dtype)


def _where(context: Context, node: Node) -> Result:
    f, condition = Formula(context, node), node.input(0)
    node.need_bool(condition)
    x, y = _dequantised(f, 1), _dequantised(f, 4)
    exprs, shape = context.broadcast(node, condition, x, y)
    chosen = f(op.where, *exprs, shape=shape)
    return _quantised(f, chosen, node.input(7), node.input(8), node.input(1).dtype)


def _standard(op_type: str) -> Convert:
    """ONNX's operator, which has the same inputs."""

    def convert(context: Context, node: Node) -> Result:
        given = dict(node.attributes)
        return Formula(context, node).standard(quantize.TABLE, op_type, 10, node.inputs, **given)

    return convert


_five = partial(entry, inputs=5)
_pool = "auto_pad ceil_mode channels_last count_include_pad kernel_shape pads strides"

TABLE: Table = {
    (DOMAIN, "MatMulIntegerToFloat", 1): entry(_matmul_integer_to_float, inputs=7),
    (DOMAIN, "DynamicQuantizeMatMul", 1): entry(_dynamic_quantize_matmul, inputs=5),
    (DOMAIN, "QGemm", 1): entry(_q_gemm, "alpha transA transB", inputs=9),
    (DOMAIN, "QAttention", 1): entry(
        _q_attention,
        "do_rotary mask_filter_value num_heads past_present_share_buffer scale unidirectional",
        inputs=9,
        outputs=2,
    ),
    (DOMAIN, "QLinearAdd", 1): entry(_pair(op.add), inputs=8),
    (DOMAIN, "QLinearMul", 1): entry(_pair(op.multiply), inputs=8),
    (DOMAIN, "QLinearSigmoid", 1): _five(_single(_sigmoid)),
    (DOMAIN, "QLinearLeakyRelu", 1): _five(_single(_leaky_relu), "alpha"),
    (DOMAIN, "QLinearSoftmax", 1): _five(_single(_softmax), "axis opset"),
    (DOMAIN, "QLinearGlobalAveragePool", 1): _five(_single(_global_average), "channels_last"),
    (DOMAIN, "QLinearAveragePool", 1): _five(_single(_average), _pool),
    (DOMAIN, "QLinearConcat", 1): entry(_concat, "axis", inputs=2**31),
    (DOMAIN, "QLinearWhere", 1): entry(_where, inputs=9),
    (DOMAIN, "QuantizeLinear", 1): entry(_standard("QuantizeLinear"), "axis", inputs=3),
    (DOMAIN, "DequantizeLinear", 1): entry(_standard("DequantizeLinear"), "axis", inputs=3),
}
