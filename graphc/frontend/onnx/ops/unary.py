"""Operators on one tensor, element by element: mathematics, rounding, activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op

from graphc.frontend.onnx import fold
from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.fold import elementwise
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.table import Convert, Operator, Result, Table
from graphc.frontend.onnx.values import FLOATS, Interval, KnownValue, Value


def _unary(operation: Callable[[relax.Expr], relax.Expr], integers: bool = False) -> Convert:
    def convert(context: Context, node: Node) -> Result:
        value = node.input(0)
        if integers:
            node.need_number(value)
        else:
            node.need_float(value)
        if value.dtype in _HALVES and operation in _NOT_IN_HALF:
            name = node.outputs[0]
            wide = context.emit(op.astype(context.expr(value), "float32"), f"{name}.wide").var
            result = context.emit(operation(wide), f"{name}.full")
            return result if result.dtype == "bool" else op.astype(result.var, value.dtype)
        return operation(context.expr(value))

    return convert


_HALVES = frozenset({"float16", "bfloat16"})
# What TVM has no half-precision code for.
_NOT_IN_HALF = frozenset(
    {op.asin, op.acos, op.atan, op.asinh, op.acosh, op.atanh, op.sinh, op.cosh, op.isnan}
)


class _Maths:
    """Writes a formula on one float input as Relax bindings; calling it binds an operation."""

    def __init__(self, context: Context, node: Node) -> None:
        value = node.input(0)
        node.need_float(value)
        self._context, self._dtype = context, value.dtype
        self._name = node.outputs[0]
        self.x = context.expr(value)

    def number(self, value: float) -> relax.Expr:
        return self._context.constant(value, self._dtype)

    def __call__(
        self, operation: Callable[..., relax.Expr], *operands: relax.Expr | float
    ) -> relax.Expr:
        exprs = [self.number(item) if isinstance(item, (int, float)) else item for item in operands]
        return self.bind(operation(*exprs))

    def bind(self, call: relax.Expr) -> relax.Expr:
        return self._context.emit(call, f"{self._name}.part").var


def _maths(formula: Callable[[_Maths, Node], relax.Expr]) -> Convert:
    def convert(context: Context, node: Node) -> Result:
        return formula(_Maths(context, node), node)

    return convert


def _reciprocal(m: _Maths, node: Node) -> relax.Expr:
    return op.divide(m.number(1), m.x)


def _softsign(m: _Maths, node: Node) -> relax.Expr:
    return op.divide(m.x, m(op.add, m(op.abs, m.x), 1.0))


def _softplus(m: _Maths, node: Node) -> relax.Expr:
    """max(x, 0) + log(1 + exp(-|x|)), which does not overflow."""
    decayed = m(op.exp, m(op.negative, m(op.abs, m.x)))
    return op.add(m(op.maximum, m.x, 0.0), m(op.log, m(op.add, decayed, 1.0)))


def _sinh(m: _Maths, node: Node) -> relax.Expr:
    """(e^x - e^-x) / 2, near 0 by its series, where the difference would cancel."""
    grown, decayed = m(op.exp, m.x), m(op.exp, m(op.negative, m.x))
    far = m(op.multiply, m(op.subtract, grown, decayed), 0.5)
    square = m(op.multiply, m.x, m.x)
    series = m(op.add, m(op.multiply, square, 1 / 5040), 1 / 120)
    series = m(op.add, m(op.multiply, series, square), 1 / 6)
    near = m(op.add, m.x, m(op.multiply, m(op.multiply, m.x, square), series))
    return op.where(m(op.less, m(op.abs, m.x), 0.5), near, far)


def _cosh(m: _Maths, node: Node) -> relax.Expr:
    grown, decayed = m(op.exp, m.x), m(op.exp, m(op.negative, m.x))
    return op.multiply(m(op.add, grown, decayed), m.number(0.5))


def _leaky_relu(m: _Maths, node: Node) -> relax.Expr:
    alpha = node.number("alpha", 0.01)
    return op.where(m(op.less, m.x, 0.0), m(op.multiply, m.x, alpha), m.x)


def _elu(m: _Maths, node: Node) -> relax.Expr:
    alpha = node.number("alpha", 1.0)
    grown = m(op.multiply, m(op.subtract, m(op.exp, m.x), 1.0), alpha)
    return op.where(m(op.less, m.x, 0.0), grown, m.x)


def _selu(m: _Maths, node: Node) -> relax.Expr:
    alpha = node.number("alpha", 1.67326319217681884765625)
    gamma = node.number("gamma", 1.05070102214813232421875)
    grown = m(op.multiply, m(op.subtract, m(op.exp, m.x), 1.0), alpha)
    return op.multiply(m(op.where, m(op.less_equal, m.x, 0.0), grown, m.x), m.number(gamma))


def _celu(m: _Maths, node: Node) -> relax.Expr:
    alpha = node.number("alpha", 1.0)
    if alpha == 0:
        raise node.error("alpha is 0")
    grown = m(op.subtract, m(op.exp, m(op.divide, m.x, alpha)), 1.0)
    below = m(op.minimum, m(op.multiply, grown, alpha), 0.0)
    return op.add(m(op.maximum, m.x, 0.0), below)


def _thresholded_relu(m: _Maths, node: Node) -> relax.Expr:
    return op.where(m(op.greater, m.x, node.number("alpha", 1.0)), m.x, m.number(0))


def _hard_sigmoid(m: _Maths, node: Node) -> relax.Expr:
    line = m(op.add, m(op.multiply, m.x, node.number("alpha", 0.2)), node.number("beta", 0.5))
    return op.minimum(m(op.maximum, line, 0.0), m.number(1))


def _hard_swish(m: _Maths, node: Node) -> relax.Expr:
    line = m(op.add, m(op.multiply, m.x, 1 / 6), 0.5)
    return op.multiply(m.x, m(op.minimum, m(op.maximum, line, 0.0), 1.0))


def _mish(m: _Maths, node: Node) -> relax.Expr:
    return op.multiply(m.x, m(op.tanh, m.bind(_softplus(m, node))))


def _swish(m: _Maths, node: Node) -> relax.Expr:
    alpha = node.number("alpha", 1.0)
    if alpha == 1.0:
        return op.nn.silu(m.x)
    return op.multiply(m.x, m(op.sigmoid, m(op.multiply, m.x, alpha)))


def _shrink(m: _Maths, node: Node) -> relax.Expr:
    bias, lambd = node.number("bias", 0.0), node.number("lambd", 0.5)
    above = m(op.where, m(op.greater, m.x, lambd), m(op.subtract, m.x, bias), 0.0)
    return op.where(m(op.less, m.x, -lambd), m(op.add, m.x, bias), above)


def _is_inf(m: _Maths, node: Node) -> relax.Expr:
    positive, negative = node.integer("detect_positive", 1), node.integer("detect_negative", 1)
    if positive and negative:
        return op.isinf(m.x)
    if not positive and not negative:
        return op.logical_and(m(op.isinf, m.x), m(op.isnan, m.x))  # never
    return op.equal(m.x, m.number(math.inf if positive else -math.inf))


def _gelu(context: Context, node: Node) -> Result:
    value = node.input(0)
    node.need_float(value)
    approximate = node.choice("approximate", "none", ("none", "tanh"))
    return (op.nn.gelu if approximate == "none" else op.nn.gelu_tanh)(context.expr(value))


def _not(context: Context, node: Node) -> Result:
    value = node.input(0)
    node.need_bool(value)
    return op.logical_not(context.expr(value))


def _bitwise_not(context: Context, node: Node) -> Result:
    value = node.input(0)
    node.need_integer(value)
    return op.bitwise_not(context.expr(value))


def _abs(context: Context, node: Node) -> Result:
    value = node.input(0)
    node.need_number(value)
    return value if value.dtype.startswith("uint") else op.abs(context.expr(value))


def _negative(context: Context, node: Node) -> Result:
    value = node.input(0)
    node.need_number(value)
    return op.negative(context.expr(value))


def _relu(context: Context, node: Node) -> Result:
    value = node.input(0)
    node.need_number(value)
    if value.dtype in FLOATS:
        return op.nn.relu(context.expr(value))
    return op.maximum(context.expr(value), context.constant(0, value.dtype))


# -- Clip ----------------------------------------------------------------------------------


def _clip(context: Context, node: Node) -> Result:
    """min(max(x, low), high), so that the upper bound wins."""
    value = node.input(0)
    node.need_number(value)
    low, high = _clip_bounds(node)
    result = context.expr(value)
    for bound, operation in ((low, op.maximum), (high, op.minimum)):
        if bound is None:
            continue
        node.same_dtype(value, bound)
        if context.symbols.product(bound.shape) != 1:
            raise node.error(f"a bound has shape {list(bound.shape)}, it must be a scalar")
        scalar = context.expr(bound)
        if bound.rank:
            scalar = context.emit(op.reshape(scalar, ()), f"{bound.name}.scalar", ()).var
        result = context.emit(operation(result, scalar), f"{node.outputs[0]}.bound").var
    return result if low or high else value


def _clip_bounds(node: Node) -> tuple[Value | None, Value | None]:
    """Attributes before opset 11, inputs from then on."""
    if node.version >= 11:
        return node.optional(1), node.optional(2)
    dtype = node.input(0).dtype

    def bound(name: str) -> Value | None:
        if not node.has(name):
            return None
        return KnownValue("", dtype, np.array(node.number(name), dtype))

    return bound("min"), bound("max")


def _fold_clip(context: Context, node: Node, arrays: Any) -> Any:
    data = arrays[0]
    if data is None:
        return None
    for bound, numeric, symbolic in zip(
        _clip_bounds(node), (np.maximum, np.minimum), (fold.maximum, fold.minimum), strict=True
    ):
        if bound is not None and data is not None:
            assert isinstance(bound, KnownValue), bound
            data = elementwise(numeric, symbolic)(context, node, [data, bound.data])
    return data


def _clip_interval(context: Context, node: Node) -> Interval | None:
    known = context.interval(node.input(0))
    low, high = (None if bound is None else context.interval(bound) for bound in _clip_bounds(node))
    bottom = low.low if low else known.low if known else None
    top = high.high if high else known.high if known else None
    if bottom is None or top is None:
        return None
    return Interval(context.symbols.minimum(bottom, top), top)


# -- folds ---------------------------------------------------------------------------------


def _float_fold(function: Callable[[np.ndarray], Any], symbolic: Any = None) -> Any:
    """A numpy function that keeps the type, computed in float64 as it would round."""
    return elementwise(
        lambda a: np.asarray(function(a.astype("float64"))).astype(a.dtype), symbolic
    )


def _absolute(symbols: Any, element: Any) -> Any:
    return fold.maximum(symbols, element, fold.negate(symbols, element))


TABLE: Table = {
    ("", "Abs", 6): Operator(_abs, elementwise(np.abs, _absolute)),
    ("", "Neg", 6): Operator(_negative, elementwise(np.negative, fold.negate)),
    ("", "Sign", 9): Operator(_unary(op.sign, integers=True), elementwise(np.sign)),
    ("", "Floor", 6): Operator(_unary(op.floor), _float_fold(np.floor, fold.floor)),
    ("", "Ceil", 6): Operator(_unary(op.ceil), _float_fold(np.ceil, fold.ceil)),
    ("", "Round", 11): Operator(_unary(op.round), _float_fold(np.round)),
    ("", "Exp", 6): Operator(_unary(op.exp), _float_fold(np.exp)),
    ("", "Log", 6): Operator(_unary(op.log), _float_fold(np.log)),
    ("", "Sqrt", 6): Operator(_unary(op.sqrt), _float_fold(np.sqrt)),
    ("", "Reciprocal", 6): Operator(_maths(_reciprocal), _float_fold(np.reciprocal)),
    ("", "Sin", 7): Operator(_unary(op.sin)),
    ("", "Cos", 7): Operator(_unary(op.cos)),
    ("", "Tan", 7): Operator(_unary(op.tan)),
    ("", "Asin", 7): Operator(_unary(op.asin)),
    ("", "Acos", 7): Operator(_unary(op.acos)),
    ("", "Atan", 7): Operator(_unary(op.atan)),
    ("", "Sinh", 9): Operator(_maths(_sinh)),
    ("", "Cosh", 9): Operator(_maths(_cosh)),
    ("", "Asinh", 9): Operator(_unary(op.asinh)),
    ("", "Acosh", 9): Operator(_unary(op.acosh)),
    ("", "Atanh", 9): Operator(_unary(op.atanh)),
    ("", "Tanh", 6): Operator(_unary(op.tanh)),
    ("", "Erf", 9): Operator(_unary(op.erf)),
    ("", "Sigmoid", 6): Operator(_unary(op.sigmoid)),
    ("", "Relu", 6): Operator(_relu),
    ("", "LeakyRelu", 6): Operator(_maths(_leaky_relu)),
    ("", "Elu", 6): Operator(_maths(_elu)),
    ("", "Selu", 6): Operator(_maths(_selu)),
    ("", "Celu", 12): Operator(_maths(_celu)),
    ("", "ThresholdedRelu", 10): Operator(_maths(_thresholded_relu)),
    ("", "Softplus", 1): Operator(_maths(_softplus)),
    ("", "Softsign", 1): Operator(_maths(_softsign)),
    ("", "HardSigmoid", 6): Operator(_maths(_hard_sigmoid)),
    ("", "HardSwish", 14): Operator(_maths(_hard_swish)),
    ("", "Mish", 18): Operator(_maths(_mish)),
    ("", "Swish", 24): Operator(_maths(_swish)),
    ("", "Gelu", 20): Operator(_gelu),
    ("", "Shrink", 9): Operator(_maths(_shrink)),
    ("", "IsNaN", 9): Operator(_unary(op.isnan)),
    ("", "IsInf", 10): Operator(_maths(_is_inf)),
    ("", "Not", 1): Operator(_not, elementwise(np.logical_not)),
    ("", "BitwiseNot", 18): Operator(_bitwise_not),
    ("", "Clip", 6): Operator(_clip, _fold_clip, _clip_interval),
}
