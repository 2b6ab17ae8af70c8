"""Elementary functions as float32 polynomials, so that loops over them vectorise.

LLVM calls libm once per lane for exp, erf and tanh. Each function here is a few fused
multiply-adds and selects instead. The coefficients are our own minimax fits (relative error,
iteratively reweighted least squares in float64, then rounded to float32); the errors below were
measured in float32 against float64 over the whole range; tests/codegen/test_math.py asserts them.

    exp      1 ulp      results below 2^-126 are flushed to zero
    erf      7 ulp      x * P(x^2) / Q(x^2) on [-3.92, 3.92], within an ulp of +-1 outside
    tanh     7 ulp      x * P(x^2) / Q(x^2) on [-9, 9], within an ulp of +-1 outside
    sigmoid  4 ulp      1 / (1 + exp(-x)), flushed to zero below x = -87.3
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.ir import Call

from graphc.codegen.rewrite import operands, rebuild

# exp(r) = 1 + r + r^2 (c0 + c1 r + ...) for |r| <= ln(2) / 2
_EXP = (
    0.4999999403953552,
    0.1666652113199234,
    0.04166838899254799,
    0.008368716575205326,
    0.0013814599951729178,
)
_LOG2_E = 1.4426950408889634
# ln(2) in two parts: n * high is exact for every exponent n.
_LN2_HIGH = 0.693359375
_LN2_LOW = -2.12194440054690583e-4
_EXP_LOWEST = -87.33654
_EXP_HIGHEST = 88.72283

_ERF_P = (
    1.128379225730896,
    0.18513594567775726,
    0.05424397811293602,
    0.003838638076558709,
    0.0003767554590012878,
    4.609122697729617e-06,
    -1.2799263870988398e-08,
)
_ERF_Q = (
    1.0,
    0.49740588665008545,
    0.11387395113706589,
    0.015430065803229809,
    0.001301523414440453,
    6.239813228603452e-05,
)
_TANH_P = (
    1.0,
    0.1368086338043213,
    0.0038695167750120163,
    2.803147981467191e-05,
    3.064290510224055e-08,
    -1.2246500688539719e-11,
)
_TANH_Q = (
    1.0,
    0.4701419472694397,
    0.02725018933415413,
    0.00039407284930348396,
    1.289046508645697e-06,
)


def vectorisable(expr: Any) -> Any:
    """`expr` with every float32 exp, erf, tanh and sigmoid call written out.

    Booleans are compared as bytes: TVM compares them with a floating-point instruction, which LLVM
    refuses.
    """
    new = rebuild(expr, [vectorisable(operand) for operand in operands(expr)])
    if isinstance(new, tirx.EQ | tirx.NE) and str(new.a.ty) == "bool":
        return type(new)(tirx.Cast("int8", new.a), tirx.Cast("int8", new.b))
    if isinstance(new, Call) and str(new.ty) == "float32":
        expand = _EXPANSIONS.get(getattr(new.op, "name", ""))
        if expand is not None:
            return expand(*new.args)
    return new


def exp(x: Any) -> Any:
    """e^x: 2^n * exp(r) with n = round(x / ln 2); NaN stays NaN, overflow gives infinity."""
    return _let(x, _exp)


def erf(x: Any) -> Any:
    """The error function."""
    return _let(x, lambda v: _odd_rational(v, 3.92, _ERF_P, _ERF_Q))


def tanh(x: Any) -> Any:
    """The hyperbolic tangent."""
    return _let(x, lambda v: _odd_rational(v, 9.0, _TANH_P, _TANH_Q))


def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x)."""
    one = _f32(1.0)
    return one / (one + exp(_f32(0.0) - x))


def _exp(x: Any) -> Any:
    clamped = _clamp(x, _EXP_LOWEST, _EXP_HIGHEST)

    def with_clamped(y: Any) -> Any:
        return _let(tirx.floor(y * _f32(_LOG2_E) + _f32(0.5)), lambda n: with_exponent(y, n))

    def with_exponent(y: Any, n: Any) -> Any:
        return _let(y - n * _f32(_LN2_HIGH) - n * _f32(_LN2_LOW), lambda r: scaled(r, n))

    def scaled(r: Any, n: Any) -> Any:
        mantissa = _horner(r, _EXP) * r * r + r + _f32(1.0)
        # 2^n in two factors: n may be 128 and 2^128 is not a float32.
        half = tirx.Cast("int32", n) >> tirx.const(1, "int32")
        rest = tirx.Cast("int32", n) - half
        return mantissa * _power_of_two(half) * _power_of_two(rest)

    value = _let(clamped, with_clamped)
    value = tirx.Select(x < _f32(_EXP_LOWEST), _f32(0.0), value)
    return tirx.Select(x > _f32(_EXP_HIGHEST), _f32(float("inf")), value)


def _power_of_two(n: Any) -> Any:
    bits = (n + tirx.const(127, "int32")) << tirx.const(23, "int32")
    return tirx.reinterpret("float32", bits)


def _odd_rational(x: Any, limit: float, p: tuple[float, ...], q: tuple[float, ...]) -> Any:
    def ratio(y: Any) -> Any:
        return _let(y * y, lambda t: y * _horner(t, p) / _horner(t, q))

    return _let(_clamp(x, -limit, limit), ratio)


def _clamp(x: Any, low: float, high: float) -> Any:
    # Two selects rather than min and max: a comparison with NaN is false, so NaN passes through.
    x = tirx.Select(x > _f32(high), _f32(high), x)
    return tirx.Select(x < _f32(low), _f32(low), x)


def _horner(x: Any, coefficients: tuple[float, ...]) -> Any:
    value = _f32(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        value = value * x + _f32(c)
    return value


def _let(value: Any, body: Callable[[Any], Any]) -> Any:
    variable = tirx.Var("t", str(value.ty))
    return tirx.Let(variable, value, body(variable))


def _f32(value: float) -> Any:
    return tirx.FloatImm("float32", value)


_EXPANSIONS: dict[str, Callable[..., Any]] = {
    "tirx.exp": exp,
    "tirx.erf": erf,
    "tirx.tanh": tanh,
    "tirx.sigmoid": sigmoid,
}
