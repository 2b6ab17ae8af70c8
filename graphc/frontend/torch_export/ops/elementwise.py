"""Element by element, with torch's type promotion: mathematics, comparisons, logic, choice."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
from torch._prims_common import elementwise_dtypes
from tvm.relax import op

from graphc.frontend.onnx.values import FLOATS, Value
from graphc.frontend.torch_export.call import Call, Result, Table, dtype_name


def _common(call: Call, *names: str) -> str:
    """The type in which torch computes with these arguments."""
    given = [_example(call.originals[name]) for name in names]
    computed, _ = elementwise_dtypes(*given, type_promotion_kind=KIND.DEFAULT)
    # torch computes halves in float32 and rounds at the end; Relax does the same within a kernel.
    promoted = torch.result_type(*given[:2]) if len(given) == 2 else computed
    return dtype_name(promoted)


def _example(given: Any) -> Any:
    """A stand-in of the same type and rank: promotion looks at no more."""
    if isinstance(given, torch.Tensor):
        return torch.empty((1,) * given.dim(), dtype=given.dtype)
    if isinstance(given, torch.SymInt):
        return 1
    return 1.0 if isinstance(given, torch.SymFloat) else given


def _binary(operator: str, *, as_float: bool = False) -> Callable[[Call], Result]:
    def convert(call: Call) -> Result:
        dtype = _common(call, "self", "other")
        if as_float and dtype not in FLOATS:
            dtype = call.dtype
        left, right = call.operand("self", dtype), call.operand("other", dtype)
        alpha = call.get("alpha", 1)
        if alpha != 1:
            right = call.part("scaled").apply("Mul", [right, call.scalar(alpha, dtype)])
        return call.cast(call.apply(operator, [left, right]), call.dtype)

    return convert


def _reversed_subtract(call: Call) -> Result:
    dtype = _common(call, "self", "other")
    scaled = call.operand("self", dtype)
    alpha = call.get("alpha", 1)
    if alpha != 1:
        scaled = call.part("scaled").apply("Mul", [scaled, call.scalar(alpha, dtype)])
    return call.apply("Sub", [call.operand("other", dtype), scaled])


def _multiply(call: Call) -> Result:
    """Of booleans it is their conjunction."""
    dtype = _common(call, "self", "other")
    return call.apply(
        "And" if dtype == "bool" else "Mul",
        [call.operand("self", dtype), call.operand("other", dtype)],
    )


def _add(call: Call) -> Result:
    if _common(call, "self", "other") == "bool":
        return call.apply("Or", [call.operand("self", "bool"), call.operand("other", "bool")])
    return _ADD(call)


_ADD = _binary("Add")


def _divide_rounded(call: Call) -> Result:
    mode = call.get("rounding_mode")
    if mode is None:
        return _DIVIDE(call)
    dtype = _common(call, "self", "other")
    left, right = call.operand("self", dtype), call.operand("other", dtype)
    if dtype in FLOATS:
        quotient = call.part("quotient").apply("Div", [left, right])
        return _floored(call, quotient) if mode == "floor" else _truncated(call, quotient)
    if mode == "trunc":
        return call.apply("Div", [left, right])
    # Floor: what is left over, which has the divisor's sign, taken away first.
    rest = call.part("rest").apply("Mod", [left, right])
    whole = call.part("whole").apply("Sub", [left, rest])
    return call.apply("Div", [whole, right])


_DIVIDE = _binary("Div", as_float=True)


def _floor_divide(call: Call) -> Result:
    dtype = _common(call, "self", "other")
    left, right = call.operand("self", dtype), call.operand("other", dtype)
    if dtype in FLOATS:
        return _floored(call, call.part("quotient").apply("Div", [left, right]))
    rest = call.part("rest").apply("Mod", [left, right])
    return call.apply("Div", [call.part("whole").apply("Sub", [left, rest]), right])


def _remainder(call: Call) -> Result:
    """It has the divisor's sign."""
    dtype = _common(call, "self", "other")
    left, right = call.operand("self", dtype), call.operand("other", dtype)
    if dtype not in FLOATS:
        return call.apply("Mod", [left, right])
    floored = _floored(call.part("floor"), call.part("quotient").apply("Div", [left, right]))
    product = call.part("product").apply("Mul", [floored, right])
    return call.apply("Sub", [left, product])


def _fmod(call: Call) -> Result:
    dtype = _common(call, "self", "other")
    return call.apply("Mod", [call.operand("self", dtype), call.operand("other", dtype)], fmod=1)


def _floored(call: Call, value: Value) -> Value:
    return call.apply("Floor", [value])


def _truncated(call: Call, value: Value) -> Value:
    size = call.part("size").apply("Floor", [call.part("abs").apply("Abs", [value])])
    return call.apply("Mul", [call.part("sign").apply("Sign", [value]), size])


def _power(call: Call) -> Result:
    dtype = dtype_name(call.result.dtype)
    exponent = call.arguments["exponent"]
    if exponent == 2 and isinstance(exponent, (int, float)):
        base = call.operand("self", dtype)
        return call.apply("Mul", [base, base])
    if exponent == 0.5 and isinstance(exponent, float) and dtype in FLOATS:
        return call.apply("Sqrt", [call.operand("self", dtype)])
    return call.apply("Pow", [call.operand("self", dtype), call.operand("exponent", dtype)])


def _comparison(operator: str, negated: bool = False) -> Callable[[Call], Result]:
    def convert(call: Call) -> Result:
        dtype = _common(call, "self", "other")
        sides = [call.operand("self", dtype), call.operand("other", dtype)]
        if dtype == "bool":  # LLVM has no comparison of them
            sides = [call.part("whole").cast(side, "int32") for side in sides]
        if not negated:
            return call.apply(operator, sides)
        return call.apply("Not", [call.part("equal").apply(operator, sides)])

    return convert


def _logical(operator: str) -> Callable[[Call], Result]:
    """Of truth values: what is not zero is true."""

    def convert(call: Call) -> Result:
        return call.apply(operator, [call.operand("self", "bool"), call.operand("other", "bool")])

    return convert


def _bitwise(logical: str, bits: str) -> Callable[[Call], Result]:
    def convert(call: Call) -> Result:
        dtype = _common(call, "self", "other")
        sides = [call.operand("self", dtype), call.operand("other", dtype)]
        return call.apply(logical if dtype == "bool" else bits, sides)

    return convert


def _logical_not(call: Call) -> Result:
    return call.apply("Not", [call.cast(call.value("self"), "bool")])


def _bitwise_not(call: Call) -> Result:
    value = call.value("self")
    return call.apply("Not" if value.dtype == "bool" else "BitwiseNot", [value])


def _unary(operator: str, *, as_float: bool = False, **attributes: Any) -> Callable[[Call], Result]:
    def convert(call: Call) -> Result:
        value = call.value("self")
        if as_float:
            value = call.cast(value, call.dtype)
        elif value.dtype not in FLOATS and operator in ("Floor", "Ceil", "Round"):
            return value
        return call.apply(operator, [value], **attributes)

    return convert


def _formula(formula: Callable[..., Any]) -> Callable[[Call], Result]:
    """`formula(m, x)` in Relax; m binds an operation, numbers taking the type of x."""

    def convert(call: Call) -> Result:
        name = "self" if "self" in call.arguments else "input"
        value = call.cast(call.value(name), call.dtype)

        def bind(operation: Callable[..., Any], *operands: Any) -> Any:
            exprs = [
                call.context.constant(x, value.dtype) if isinstance(x, (int, float)) else x
                for x in operands
            ]
            return call.part("part").emit(operation(*exprs)).var

        return call.emit(formula(call, bind, call.expr(value)))

    return convert


def _softplus(call: Call, m: Callable[..., Any], x: Any) -> Any:
    """log(1 + exp(beta x)) / beta, x itself beyond the threshold."""
    beta, threshold = float(call.get("beta", 1)), float(call.get("threshold", 20))
    scaled = x if beta == 1 else m(op.multiply, x, beta)
    decayed = m(op.exp, m(op.negative, m(op.abs, scaled)))
    soft = m(op.add, m(op.maximum, scaled, 0.0), m(op.log, m(op.add, decayed, 1.0)))
    if beta != 1:
        soft = m(op.divide, soft, beta)
    return op.where(m(op.greater, scaled, threshold), x, soft)


def _gelu(call: Call) -> Result:
    return call.apply("Gelu", [call.value("self")], approximate=call.get("approximate", "none"))


def _silu(call: Call) -> Result:
    return call.emit(op.nn.silu(call.expr(call.value("self"))))


def _leaky_relu(call: Call) -> Result:
    return call.apply("LeakyRelu", [call.value("self")], alpha=float(call.get("negative_slope")))


def _elu(call: Call, m: Callable[..., Any], x: Any) -> Any:
    """scale * x above 0, scale * alpha * (exp(input_scale * x) - 1) below."""
    scale, alpha = float(call.get("scale", 1)), float(call.get("alpha", 1))
    factor = float(call.get("input_scale", 1))
    decayed = m(op.exp, x if factor == 1 else m(op.multiply, x, factor))
    below = m(op.multiply, m(op.subtract, decayed, 1.0), alpha * scale)
    above = x if scale == 1 else m(op.multiply, x, scale)
    return op.where(m(op.greater, x, 0.0), above, below)


def _hardtanh(call: Call) -> Result:
    low, high = float(call.get("min_val", -1)), float(call.get("max_val", 1))
    return _clamped(call, call.value("self"), low, high)


def _clamp(call: Call) -> Result:
    low, high = call.arguments.get("min"), call.arguments.get("max")
    return _clamped(call, call.cast(call.value("self"), call.dtype), low, high)


def _clamp_min(call: Call) -> Result:
    return _clamped(call, call.cast(call.value("self"), call.dtype), call.arguments["min"], None)


def _clamp_max(call: Call) -> Result:
    return _clamped(call, call.cast(call.value("self"), call.dtype), None, call.arguments["max"])


def _clamped(call: Call, value: Value, low: Any, high: Any) -> Value:
    def bound(limit: Any) -> Value:
        is_tensor = hasattr(limit, "shape")
        return call.cast(limit, call.dtype) if is_tensor else call.scalar(limit, call.dtype)

    if low is not None:
        value = (call.part("low") if high is not None else call).apply("Max", [value, bound(low)])
    return value if high is None else call.apply("Min", [value, bound(high)])


def _where(call: Call) -> Result:
    condition = call.cast(call.value("condition"), "bool")
    branches = [call.operand("self", call.dtype), call.operand("other", call.dtype)]
    return call.apply("Where", [condition, *branches])


def _masked_fill(call: Call) -> Result:
    value = call.operand("value", call.dtype)
    mask = call.cast(call.value("mask"), "bool")
    return call.apply("Where", [mask, value, call.value("self")])


def _copy(call: Call) -> Result:
    return call.expand(call.cast(call.value("src"), call.dtype), call.shape)


def _nan_to_num(call: Call) -> Result:
    value, limits = call.value("self"), np.finfo(np.float32)
    if value.dtype not in ("float32",):
        raise call.unsupported(f"of {value.dtype}; float32 is compiled")
    number = call.scalar(float(call.get("nan", 0.0)), value.dtype)
    value = call.part("number").apply(
        "Where", [call.part("nan").apply("IsNaN", [value]), number, value]
    )
    high, low = call.get("posinf", float(limits.max)), call.get("neginf", float(limits.min))
    return _clamped(call, value, float(low), float(high))


_UNARY = {
    "abs": "Abs", "neg": "Neg", "sign": "Sign", "floor": "Floor", "ceil": "Ceil", "round": "Round",
    "relu": "Relu", "isnan": "IsNaN", "isinf": "IsInf", "hardswish": "HardSwish", "mish": "Mish",
}  # fmt: skip
_FLOAT_UNARY = {
    "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "reciprocal": "Reciprocal", "sin": "Sin",
    "cos": "Cos", "tan": "Tan", "asin": "Asin", "acos": "Acos", "atan": "Atan", "sinh": "Sinh",
    "cosh": "Cosh", "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh", "tanh": "Tanh",
    "erf": "Erf", "sigmoid": "Sigmoid",
}  # fmt: skip
_COMPARISONS = {
    "eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual",
}  # fmt: skip


def _overloads(name: str, convert: Callable[[Call], Result], *overloads: str) -> Table:
    return {f"{name}.{overload}": convert for overload in overloads}


TABLE: Table = {
    **{f"{name}.default": _unary(operator) for name, operator in _UNARY.items()},
    **{
        f"{name}.default": _unary(operator, as_float=True)
        for name, operator in _FLOAT_UNARY.items()
    },
    **{
        f"{name}.{overload}": _comparison(operator)
        for name, operator in _COMPARISONS.items()
        for overload in ("Tensor", "Scalar")
    },
    **_overloads("ne", _comparison("Equal", negated=True), "Tensor", "Scalar"),
    **_overloads("add", _add, "Tensor", "Scalar"),
    **_overloads("sub", _binary("Sub"), "Tensor", "Scalar"),
    **_overloads("rsub", _reversed_subtract, "Tensor", "Scalar"),
    **_overloads("mul", _multiply, "Tensor", "Scalar"),
    **_overloads("div", _DIVIDE, "Tensor", "Scalar"),
    **_overloads("true_divide", _DIVIDE, "Tensor", "Scalar"),
    **_overloads("div", _divide_rounded, "Tensor_mode", "Scalar_mode"),
    **_overloads("floor_divide", _floor_divide, "default", "Scalar"),
    **_overloads("remainder", _remainder, "Tensor", "Scalar", "Scalar_Tensor"),
    **_overloads("fmod", _fmod, "Tensor", "Scalar"),
    **_overloads("pow", _power, "Tensor_Scalar", "Tensor_Tensor", "Scalar"),
    "maximum.default": _binary("Max"),
    "max.other": _binary("Max"),
    "minimum.default": _binary("Min"),
    "min.other": _binary("Min"),
    "logical_and.default": _logical("And"),
    "logical_or.default": _logical("Or"),
    "logical_xor.default": _logical("Xor"),
    "logical_not.default": _logical_not,
    "bitwise_not.default": _bitwise_not,
    **{
        f"{name}.{overload}": _bitwise(logical, bits)
        for names, logical, bits in (
            (("bitwise_and", "__and__"), "And", "BitwiseAnd"),
            (("bitwise_or", "__or__"), "Or", "BitwiseOr"),
            (("bitwise_xor", "__xor__"), "Xor", "BitwiseXor"),
        )
        for name in names
        for overload in ("Tensor", "Scalar")
    },
    "trunc.default": lambda call: _truncated(call, call.value("self")),
    "rsqrt.default": _formula(lambda call, m, x: op.rsqrt(x)),
    "square.default": _formula(lambda call, m, x: op.multiply(x, x)),
    "exp2.default": _formula(lambda call, m, x: op.exp(m(op.multiply, x, math.log(2)))),
    "log2.default": _formula(
        lambda call, m, x: op.divide(
            m(op.log, x), call.context.constant(math.log(2), call.dtype)
        )
    ),
    "expm1.default": _formula(
        lambda call, m, x: op.subtract(m(op.exp, x), call.context.constant(1.0, call.dtype))
    ),
    "log1p.default": _formula(lambda call, m, x: op.log(m(op.add, x, 1.0))),
    "softplus.default": _formula(_softplus),
    "silu.default": _silu,
    "gelu.default": _gelu,
    "leaky_relu.default": _leaky_relu,
    "elu.default": _formula(_elu),
    "relu6.default": lambda call: _clamped(call, call.value("self"), 0.0, 6.0),
    "hardtanh.default": _hardtanh,
    "hardsigmoid.default": lambda call: call.apply(
        "HardSigmoid", [call.value("self")], alpha=1 / 6, beta=0.5
    ),
    **_overloads("clamp", _clamp, "default", "Tensor"),
    **_overloads("clamp_min", _clamp_min, "default", "Tensor"),
    **_overloads("clamp_max", _clamp_max, "default", "Tensor"),
    **_overloads("where", _where, "self", "ScalarOther", "ScalarSelf", "Scalar"),
    **_overloads("masked_fill", _masked_fill, "Scalar", "Tensor"),
    "copy.default": _copy,
    "nan_to_num.default": _nan_to_num,
}  # fmt: skip
