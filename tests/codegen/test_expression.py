"""Dimension expressions as C give what TIR means, also below zero, and say when they overflow."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from c_compiler import compile_c
from tvm import tirx

from graphc.codegen.expression import c_text, text, variables

A, B = tirx.Var("a", "int64"), tirx.Var("b", "int64")
NAMES = {"a": "n_a", "b": "n_b"}


def const(value: int) -> Any:
    return tirx.const(value, "int64")


# Expression, its meaning in Python, its text.
CASES: list[tuple[Any, Any, str]] = [
    (7, lambda a, b: 7, "7"),
    (const(-3), lambda a, b: -3, "-3"),
    (A, lambda a, b: a, "a"),
    (A + B * 2, lambda a, b: a + b * 2, "a + b*2"),
    ((A + 1) * B, lambda a, b: (a + 1) * b, "(a + 1)*b"),
    (A - (B - 1), lambda a, b: a - (b - 1), "a - (b - 1)"),
    (A * B * 3, lambda a, b: a * b * 3, "a*b*3"),
    (tirx.floordiv(A, const(3)), lambda a, b: a // 3, "a//3"),
    (tirx.floordiv(A, const(-3)), lambda a, b: a // -3, "a//(-3)"),
    (tirx.floormod(A, const(3)), lambda a, b: a % 3, "a%3"),
    (tirx.floormod(A, const(-3)), lambda a, b: a % -3, "a%(-3)"),
    (tirx.truncdiv(A, const(3)), lambda a, b: int(a / 3), "a//3"),
    (tirx.truncmod(A, const(3)), lambda a, b: a - 3 * int(a / 3), "a%3"),
    (tirx.min(A, B) - tirx.max(A, const(2)), lambda a, b: min(a, b) - max(a, 2), None),
    (tirx.Select(A > B, A, B), lambda a, b: max(a, b), "((a > b) ? a : b)"),
    (tirx.if_then_else(A.equal(B), A, B + 1), lambda a, b: a if a == b else b + 1, None),
    (
        tirx.Select(tirx.all(A >= 0, tirx.Not(B < 0)), A, B),
        lambda a, b: a if a >= 0 <= b else b,
        None,
    ),
    (A << const(3), lambda a, b: a * 8, None),
    (A >> const(1), lambda a, b: a >> 1, None),
    (tirx.Cast("int64", tirx.Cast("int32", A)), lambda a, b: a, "a"),
]
VALUES = [(a, b) for a in (-7, -3, -1, 0, 1, 2, 6, 512) for b in (-4, 0, 1, 5)]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Every case, and some that overflow, as functions case0, case1, ... of (a, b, overflow)."""
    folder = tmp_path_factory.mktemp("expression")
    expressions = [case[0] for case in CASES] + OVERFLOWS
    functions = [
        f"int64_t case{i}(int64_t n_a, int64_t n_b, int *overflow) {{\n"
        f"  gc_frame frame = {{0}}, *f = &frame;\n"
        f"  int64_t r = {c_text(expression, NAMES)};\n"
        f"  (void)n_a, (void)n_b, *overflow = f->overflow;\n  return r;\n}}\n"
        for i, expression in enumerate(expressions)
    ]
    (folder / "cases.c").write_text('#include "program.h"\n' + "".join(functions))
    flags = ["-O2", "-Wall", "-Werror", "-shared", "-fPIC"]
    return ctypes.CDLL(str(compile_c([*flags, folder / "cases.c"], folder / "cases.so")))


OVERFLOWS: list[Any] = [
    A * B,
    A + A,
    const(0) - A - A,
    tirx.floordiv(A, B),
    tirx.floormod(A, B),
    A << const(40),
    (A * A) // B,
]
LARGE = 1 << 62


def call(library: ctypes.CDLL, number: int, a: int, b: int) -> tuple[int, int]:
    function = getattr(library, f"case{number}")
    function.restype = ctypes.c_int64
    overflow = ctypes.c_int()
    value = function(ctypes.c_int64(a), ctypes.c_int64(b), ctypes.byref(overflow))
    return value, overflow.value


@pytest.mark.parametrize("number", range(len(CASES)))
def test_values(library: ctypes.CDLL, number: int) -> None:
    _, meaning, _ = CASES[number]
    for a, b in VALUES:
        assert call(library, number, a, b) == (meaning(a, b), 0), (a, b)


@pytest.mark.parametrize("number", range(len(OVERFLOWS)))
def test_overflow(library: ctypes.CDLL, number: int) -> None:
    a, b = (LARGE, 0) if number in (3, 4) else (LARGE + 5, LARGE)
    assert call(library, len(CASES) + number, a, b)[1] == 1


def test_smallest_number_divided_by_minus_one(library: ctypes.CDLL) -> None:
    assert call(library, len(CASES) + 3, -(1 << 63), -1)[1] == 1


@pytest.mark.parametrize(("expression", "expected"), [(c[0], c[2]) for c in CASES if c[2]])
def test_text(expression: Any, expected: str) -> None:
    assert text(expression) == expected


def test_variables() -> None:
    assert variables(3) == set()
    assert variables(tirx.max(A, const(2)) * 4) == {"a"}
    assert variables(tirx.Select(A > 1, B, A)) == {"a", "b"}


def test_what_has_no_c() -> None:
    with pytest.raises(AssertionError, match="dimension 'c' is bound by no input"):
        c_text(tirx.Var("c", "int64"), NAMES)
    with pytest.raises(AssertionError, match="narrows"):
        c_text(tirx.Cast("int8", A), NAMES)
    with pytest.raises(AssertionError, match="does not fit int64"):
        c_text(1 << 63, NAMES)


def test_numbers_print_as_int64() -> None:
    assert c_text(-(1 << 63), {}) == "INT64_MIN"
    assert c_text(1 << 40, {}) == f"INT64_C({1 << 40})"
