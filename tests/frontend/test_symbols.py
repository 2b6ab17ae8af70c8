"""Arithmetic on dimensions: exact division, proofs, bounds, constraints."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import pytest
from tvm import tirx

from graphc.errors import ConfigError, ModelError
from graphc.frontend.onnx import polynomial
from graphc.frontend.onnx.symbols import Bounds, Symbols, TightenedError, parse_bounds, same
from graphc.ir import Expr

N, M = tirx.Var("n", "int64"), tirx.Var("m", "int64")
NUMBERS = st.integers(-6, 6)


def _polynomial(terms: list[tuple[int, int, int]]) -> Expr:
    total: Expr = 0
    for factor, n, m in terms:
        term: Expr = factor
        for _ in range(n):
            term = term * N
        for _ in range(m):
            term = term * M
        total = total + term
    return total


TERMS = st.lists(st.tuples(NUMBERS, st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=3)


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(TERMS, TERMS)
def test_a_product_divides_exactly(left: list, right: list) -> None:  # type: ignore[type-arg]
    a, b = _polynomial(left), _polynomial(right)
    points = [(n, m) for n in range(1, 5) for m in range(1, 5)]
    if not any(_value(b, *point) for point in points):
        return
    quotient = polynomial.divide(a * b, b)
    assert quotient is not None
    assert all(_value(quotient, *point) == _value(a, *point) for point in points)


def _value(expr: Expr, n: int, m: int) -> int:
    if isinstance(expr, int):
        return expr
    if isinstance(expr, tirx.Var):
        return n if expr.same_as(N) else m
    if isinstance(expr, tirx.IntImm):
        return int(expr.value)
    left, right = _value(expr.a, n, m), _value(expr.b, n, m)
    if isinstance(expr, tirx.Mul):
        return left * right
    return left + right if isinstance(expr, tirx.Add) else left - right


def test_division_with_a_remainder() -> None:
    assert polynomial.divide(N * N + 1, N) is None
    assert polynomial.divide(N * 3, 2) is None
    assert polynomial.divide(N, 0) is None
    quotient = polynomial.divide(N * N + N, N + 1)
    assert quotient is not None and str(quotient) == "n"


def test_linear() -> None:
    assert polynomial.linear(N * 3 - 2) == (3, N, -2)
    assert polynomial.linear(N * M) is None
    assert polynomial.linear(tirx.floordiv(N, 2)) is None


def _symbols(**given: int | Bounds) -> Symbols:
    return Symbols(given, {})


def test_names_share_a_variable_and_fixed_ones_are_numbers() -> None:
    symbols = _symbols(b=4)
    assert symbols.dim("a") is symbols.dim("a")
    assert symbols.dim("b") == 4


def test_unify() -> None:
    symbols = _symbols()
    n, m = symbols.dim("n"), symbols.dim("m")
    assert same(symbols.unify(symbols.simplify(n * 2 - n), n, "here"), n)
    assert not symbols.constraints
    assert same(symbols.unify(n, m, "the sum"), n)
    symbols.unify(m, n, "again")
    (constraint,) = symbols.constraints
    assert constraint.reason == "the sum"
    with pytest.raises(ModelError, match=r"here: dimensions 3 and 4"):
        symbols.unify(3, 4, "here")
    with pytest.raises(ModelError, match="do not match"):
        symbols.unify(n, symbols.simplify(n + 1), "here")
    with pytest.raises(ModelError, match="do not match"):
        symbols.unify(n, 0, "here")


def test_a_minimum_bounds_its_dimension() -> None:
    symbols = _symbols()
    n = symbols.dim("n")
    with pytest.raises(TightenedError) as caught:
        symbols.unify(n, symbols.minimum(n, 512), "here")
    assert (caught.value.name, caught.value.side, caught.value.bound) == ("n", "upper", 512)


@pytest.mark.parametrize(
    ("factor", "offset", "limit", "side", "bound"),
    [(1, 0, 10, "upper", 10), (2, 1, 10, "upper", 4), (-1, 5, 2, "lower", 3),
     (-2, 5, 0, "lower", 3)],
)  # fmt: skip
def test_bounds_from_linear_expressions(
    factor: int, offset: int, limit: int, side: str, bound: int
) -> None:
    symbols = _symbols()
    n = symbols.dim("n")
    with pytest.raises(TightenedError) as caught:
        symbols.require_at_most(symbols.simplify(n * factor + offset), limit, "here")
    assert (caught.value.side, caught.value.bound) == (side, bound)


def test_bounds_against_what_the_user_said() -> None:
    implied = {("n", "upper"): (512, "the table has 512 rows")}
    assert Symbols({"n": Bounds(1, None)}, implied).dim("n") is not None
    with pytest.raises(ConfigError, match=r"600 was asked for.*at most 512.*table"):
        Symbols({"n": Bounds(1, 600)}, implied).dim("n")
    with pytest.raises(ModelError, match=r"at most|to 512"):
        Symbols({"n": Bounds(600, None)}, implied).dim("n")


def test_huge_expressions_are_refused() -> None:
    symbols = _symbols()
    n = symbols.dim("n")
    total: Expr = n
    with pytest.raises(ModelError, match="more than"):
        for _ in range(1000):
            total = symbols.simplify(total * n)


def test_parse_bounds() -> None:
    assert parse_bounds({"a": 3, "b": (1, None), "c": (4, 4)}) == {"a": 3, "b": Bounds(1), "c": 4}
