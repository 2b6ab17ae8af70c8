"""Matrix products with transposes, a factor, a bias and an activation in one operator."""

from __future__ import annotations

from collections.abc import Callable

from tvm import relax
from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.contrib.formula import DOMAIN, Formula, entry
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.ops import convolution, matmul
from graphc.frontend.onnx.table import Result, Table
from graphc.frontend.onnx.values import TensorValue, Value


def _fused_matmul(context: Context, node: Node) -> Result:
    """alpha * A' B', where ' may turn the last two axes, or move the first one behind the batch."""
    f = Formula(context, node)
    left = _turned(f, node.input(0), "A")
    right = _turned(f, node.input(1), "B")
    product = f.standard(matmul.TABLE, "MatMul", 1, [left, right])
    alpha = node.number("alpha", 1.0)
    return product if alpha == 1.0 else op.multiply(product.var, f.full(alpha, product.dtype))


def _turned(f: Formula, value: Value, letter: str) -> Value:
    """[m, batch.., k] with transBatch is [batch.., m, k]; trans then turns the last two axes."""
    f.node.need_float(value)
    order = list(range(value.rank))
    if f.node.integer(f"transBatch{letter}", 0):
        if value.rank < 3:
            raise f.node.error(f"transBatch{letter} needs 3 dimensions, the input has {value.rank}")
        order = [*order[1:-1], 0, order[-1]]
    if f.node.integer(f"trans{letter}", 0) and value.rank > 1:
        order[-2:] = order[:-3:-1]
    if order == list(range(value.rank)):
        return value
    return f.value(op.permute_dims(f.context.expr(value), order))


def _gemm_fast_gelu(context: Context, node: Node) -> Result:
    f = Formula(context, node)
    product = f.standard(matmul.TABLE, "MatMul", 1, [node.input(0), node.input(1)])
    total, bias = product.var, node.optional(2)
    if bias is not None:
        total = f(op.add, total, f.fit(bias, product.shape[-1:], "the bias"))
    return op.nn.gelu_tanh(total)


def _fused_gemm(context: Context, node: Node) -> Result:
    f = Formula(context, node)
    inputs = [node.input(0), node.input(1), node.optional(2)]
    given = {name: node.attributes[name] for name in ("alpha", "beta", "transA", "transB")
             if node.has(name)}  # fmt: skip
    product = f.standard(matmul.TABLE, "Gemm", 7, inputs, **given)
    parameters = [
        node.number(f"activation_{name}") if node.has(f"activation_{name}") else None
        for name in ("alpha", "beta")
    ]
    return _activated(f, product.var, parameters)


def _fused_conv(context: Context, node: Node) -> Result:
    """activation(conv(x) + z)"""
    f, total = Formula(context, node), _convolved(context, node, node.input(0))
    other = node.optional(3)
    expr = total.var
    if other is not None:
        expr = f(op.add, expr, f.fit(other, total.shape, "Z"))
    parameters: list[float | None] = [*node.numbers("activation_params", ()), None, None]
    return _activated(f, expr, parameters[:2])


def _nhwc_conv(context: Context, node: Node) -> Result:
    """A convolution of [n, h, w, c] with weights [m, h, w, c]: both kinds have channels last."""
    f, value, weight = Formula(context, node), node.input(0), node.input(1)
    node.need_rank(value, 4, 4)
    node.need_rank(weight, 4, 4)
    first = [0, 3, 1, 2]
    moved = f.value(op.permute_dims(context.expr(value), first))
    kernel = f.value(op.permute_dims(context.expr(weight), first))
    made = _convolved(context, node, moved, kernel)
    return op.permute_dims(made.var, [0, 2, 3, 1])


def _convolved(
    context: Context, node: Node, value: Value, weight: Value | None = None
) -> TensorValue:
    names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    given = {name: node.attributes[name] for name in names if node.has(name)}
    inputs = [value, weight or node.input(1), node.optional(2)]
    return Formula(context, node).standard(convolution.TABLE, "Conv", 1, inputs, **given)


# -- activations ---------------------------------------------------------------------------

_Rule = Callable[[Formula, relax.Expr, float, float], relax.Expr]


def _leaky(f: Formula, x: relax.Expr, alpha: float, beta: float) -> relax.Expr:
    negative = f(op.less, x, 0.0)
    return op.where(negative, f(op.multiply, x, alpha), x)


def _hard_sigmoid(f: Formula, x: relax.Expr, alpha: float, beta: float) -> relax.Expr:
    line = f(op.add, f(op.multiply, x, alpha), beta)
    return op.minimum(f(op.maximum, line, 0.0), f.full(1, str(x.ty.dtype)))


def _clip(f: Formula, x: relax.Expr, alpha: float, beta: float) -> relax.Expr:
    return op.minimum(f(op.maximum, x, alpha), f.full(beta, str(x.ty.dtype)))


_ACTIVATIONS: dict[str, tuple[_Rule, float, float]] = {
    "Relu": (lambda f, x, alpha, beta: op.nn.relu(x), 0, 0),
    "Tanh": (lambda f, x, alpha, beta: op.tanh(x), 0, 0),
    "Sigmoid": (lambda f, x, alpha, beta: op.sigmoid(x), 0, 0),
    "LeakyRelu": (_leaky, 0.01, 0),
    "HardSigmoid": (_hard_sigmoid, 0.2, 0.5),
    "Clip": (_clip, -3.4028234663852886e38, 3.4028234663852886e38),
}


def _activated(f: Formula, x: relax.Expr, parameters: list[float | None]) -> relax.Expr:
    name = f.node.text("activation", "")
    if not name:
        return op.multiply(x, f.full(1, str(x.ty.dtype)))
    if name not in _ACTIVATIONS:
        raise f.node.unsupported(
            f"activation {name!r} is not compiled, only {', '.join(_ACTIVATIONS)}"
        )
    rule, *defaults = _ACTIVATIONS[name]
    alpha, beta = (
        default if given is None else given
        for given, default in zip(parameters, defaults, strict=True)
    )
    return rule(f, x, alpha, beta)


_FUSED = entry(_fused_matmul, "alpha transA transB transBatchA transBatchB", inputs=2)
_WINDOW = "auto_pad dilations group kernel_shape pads strides"

TABLE: Table = {
    (DOMAIN, "FusedMatMul", 1): _FUSED,
    (DOMAIN, "TransposeMatMul", 1): _FUSED,
    (DOMAIN, "GemmFastGelu", 1): entry(_gemm_fast_gelu, inputs=3),
    (DOMAIN, "FusedGemm", 1): entry(
        _fused_gemm,
        "alpha beta transA transB activation activation_alpha activation_beta activation_gamma",
        inputs=3,
    ),
    (DOMAIN, "FusedConv", 1): entry(
        _fused_conv, f"{_WINDOW} activation activation_params", inputs=4
    ),
    (DOMAIN, "NhwcConv", 1): entry(_nhwc_conv, _WINDOW, inputs=3),
}
