"""Elementary functions as float32 polynomials, so that loops over them vectorise.

LLVM calls libm once per lane for exp, erf and tanh. Each function here is a few fused
multiply-adds and selects instead. The coefficients are our own minimax fits (relative error,
iteratively reweighted least squares in float64, then rounded to float32); the errors below were
measured in float32 against float64 over the whole range; tests/codegen/test_math.py asserts them.

    exp      1.3 ulp    results below 2^-125 are flushed to zero
    exp_low  2.5 ulp    the same for x <= 0 with fewer operations: for softmax
    erf      6 ulp      x * P(x^2) on [-3.92, 3.92], within an ulp of +-1 outside
    tanh     7 ulp      x * P(x^2) / Q(x^2) on [-9, 9], within an ulp of +-1 outside
    sigmoid  4 ulp      1 / (1 + exp(-x)), flushed to zero below x = -86.9
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.ir import Call

from graphc.codegen.rewrite import operands, rebuild

# e^r = 1 + r (c0 + c1 r + ...) for |r| <= ln(2) / 2, to 0.03 and to 1.5 units of 2^-24
_EXP = (
    1.0,
    0.4999999403953552,
    0.16666430234909058,
    0.04166799783706665,
    0.008374141529202461,
    0.0013843865599483252,
)
_EXP_SHORT = (
    0.9999997615814209,
    0.4999915063381195,
    0.166676327586174,
    0.04189787432551384,
    0.008290558122098446,
)
_LOG2_E = 1.4426950408889634
# ln(2) in two parts: n * high is exact for every exponent n.
_LN2_HIGH = 0.693359375
_LN2_LOW = -2.12194440054690583e-4
# Added to a number below 2^22, it leaves the number's nearest integer in the lowest bits.
_ROUND = 12582912.0
_EXP_LOWEST = -86.98
_EXP_LOW_LOWEST = -87.33
_EXP_HIGHEST = 88.72283

# erf(x) / x over t = 2 (x / 3.92)^2 - 1: in powers of x^2 itself the terms would cancel.
_ERF_LIMIT = 3.92
_ERF = (
    0.36073681712150574,
    -0.18010924756526947,
    0.13408273458480835,
    -0.10915482044219971,
    0.09062795341014862,
    -0.07429393380880356,
    0.058200523257255554,
    -0.042087066918611526,
    0.030279822647571564,
    -0.023390822112560272,
    0.013325597159564495,
    -0.0031030806712806225,
    0.0025825209449976683,
    -0.004499504808336496,
    0.001904569799080491,
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
    """e^x; NaN stays NaN, overflow gives infinity."""

    def bounded(x: Any) -> Any:
        # The factor is 2^(n - 1), since 2^128 is not a float32; the polynomial is doubled for it.
        value = _power(x, _EXP, doubled=True)
        value = tirx.Select(x < _f32(_EXP_LOWEST), _f32(0.0), value)
        return tirx.Select(x > _f32(_EXP_HIGHEST), _f32(float("inf")), value)

    return _let(x, bounded)


def exp_low(x: Any) -> Any:
    """e^x for x <= 0, from -infinity on; NaN stays NaN."""

    def bounded(x: Any) -> Any:
        value = _power(x, _EXP_SHORT, doubled=False)
        return tirx.Select(x < _f32(_EXP_LOW_LOWEST), _f32(0.0), value)

    return _let(x, bounded)


def erf(x: Any) -> Any:
    """The error function."""

    def polynomial(y: Any) -> Any:
        t = y * y * _f32(2.0 / _ERF_LIMIT**2) - _f32(1.0)
        return _let(t, lambda t: y * _horner(t, _ERF))

    return _let(x, lambda v: _let(_clamp(v, -_ERF_LIMIT, _ERF_LIMIT), polynomial))


def tanh(x: Any) -> Any:
    """The hyperbolic tangent."""
    return _let(x, lambda v: _odd_rational(v, 9.0, _TANH_P, _TANH_Q))


def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x)."""
    one = _f32(1.0)
    return one / (one + exp(_f32(0.0) - x))


def _power(x: Any, coefficients: tuple[float, ...], *, doubled: bool) -> Any:
    """e^x = 2^n e^r with n the integer nearest to x / ln 2, within the bounds of n's exponent."""
    factor = 2.0 if doubled else 1.0
    bias = _f32(_ROUND + (126.0 if doubled else 127.0))

    def with_rounded(t: Any) -> Any:
        power = tirx.reinterpret("float32", _bits(t) << tirx.const(23, "int32"))
        return _let(t - bias, lambda n: with_integer(n, power))

    def with_integer(n: Any, power: Any) -> Any:
        rest = x - n * _f32(_LN2_HIGH) - n * _f32(_LN2_LOW)
        return _let(rest, lambda r: mantissa(r) * power)

    def mantissa(r: Any) -> Any:
        return r * _horner(r, tuple(factor * c for c in coefficients)) + _f32(factor)

    return _let(x * _f32(_LOG2_E) + bias, with_rounded)


def _bits(x: Any) -> Any:
    return tirx.reinterpret("int32", x)


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
    # The same instruction (ties to even), but TVM takes loops over nearbyint apart into scalars.
    "tirx.nearbyint": tirx.round,
}
