"""Exact division of integer polynomials in the symbolic dimensions.

TVM's simplifier divides products of dimensions; this also divides sums, such as
(n*n + n) / n or (b*s*12 + b*12) / (s + 1). A polynomial is a mapping from a monomial to its
coefficient; a monomial is a sorted tuple of (atom number, power). What is not a sum or product
(a minimum, a rounded quotient) is an atom of its own.
"""

from __future__ import annotations

from typing import TypeAlias

import tvm_ffi
from tvm import tirx

from graphc.ir import Expr

Monomial: TypeAlias = "tuple[tuple[int, int], ...]"
Polynomial: TypeAlias = "dict[Monomial, int]"

# Both bound the work that a hostile model can cause; real shapes have one to three terms.
_MAX_TERMS = 64
_MAX_STEPS = 64


class _TooBigError(Exception):
    """The polynomial has more terms than a shape of a real model."""


class Atoms:
    """Numbers the variables and opaque expressions that polynomials are made of."""

    def __init__(self) -> None:
        self._numbers: dict[int, list[tuple[Expr, int]]] = {}
        self._atoms: list[Expr] = []

    def number(self, expr: Expr) -> int:
        bucket = self._numbers.setdefault(tvm_ffi.structural_hash(expr, map_free_vars=False), [])
        for known, number in bucket:
            if tvm_ffi.structural_equal(known, expr):
                return number
        self._atoms.append(expr)
        bucket.append((expr, len(self._atoms) - 1))
        return len(self._atoms) - 1

    def __len__(self) -> int:
        return len(self._atoms)

    def expr(self, number: int) -> Expr:
        return self._atoms[number]


def divide(dividend: Expr, divisor: Expr) -> Expr | None:
    """The quotient when the division leaves no remainder for any value of the dimensions."""
    atoms = Atoms()
    try:
        rest, by = _polynomial(dividend, atoms), _polynomial(divisor, atoms)
        if not by:
            return None
        quotient: Polynomial = {}

        def order(monomial: Monomial) -> tuple[int, ...]:
            powers = dict(monomial)
            return tuple(powers.get(atom, 0) for atom in range(len(atoms)))

        lead = max(by, key=order)
        for _ in range(_MAX_STEPS):
            if not rest:
                return _expression(quotient, atoms)
            top = max(rest, key=order)
            step = _monomial_quotient(top, lead)
            if step is None or rest[top] % by[lead]:
                return None
            term = {step: rest[top] // by[lead]}
            quotient = _add(quotient, term)
            rest = _add(rest, _multiply(by, {step: -term[step]}))
    except _TooBigError:
        pass
    return None


def equal(left: Expr, right: Expr) -> bool:
    """Whether both are the same polynomial."""
    atoms = Atoms()
    try:
        return _polynomial(left, atoms) == _polynomial(right, atoms)
    except _TooBigError:
        return False


def linear(expr: Expr) -> tuple[int, tirx.Var, int] | None:
    """(a, v, b) when `expr` is a*v + b in one variable, a not zero."""
    atoms = Atoms()
    try:
        terms = _polynomial(expr, atoms)
    except _TooBigError:
        return None
    constant = terms.pop((), 0)
    if len(terms) != 1:
        return None
    ((monomial, factor),) = terms.items()
    atom = atoms.expr(monomial[0][0])
    if len(monomial) != 1 or monomial[0][1] != 1 or not isinstance(atom, tirx.Var):
        return None
    return factor, atom, constant


def _polynomial(expr: Expr, atoms: Atoms) -> Polynomial:
    if isinstance(expr, int):
        return {(): expr} if expr else {}
    if isinstance(expr, tirx.IntImm):
        return {(): int(expr.value)} if expr.value else {}
    if isinstance(expr, tirx.Add):
        return _add(_polynomial(expr.a, atoms), _polynomial(expr.b, atoms))
    if isinstance(expr, tirx.Sub):
        return _add(_polynomial(expr.a, atoms), _multiply(_polynomial(expr.b, atoms), {(): -1}))
    if isinstance(expr, tirx.Mul):
        return _multiply(_polynomial(expr.a, atoms), _polynomial(expr.b, atoms))
    return {((atoms.number(expr), 1),): 1}


def _add(left: Polynomial, right: Polynomial) -> Polynomial:
    total = dict(left)
    for monomial, factor in right.items():
        value = total.get(monomial, 0) + factor
        if value:
            total[monomial] = value
        else:
            total.pop(monomial, None)
    if len(total) > _MAX_TERMS:
        raise _TooBigError
    return total


def _multiply(left: Polynomial, right: Polynomial) -> Polynomial:
    total: Polynomial = {}
    for a, x in left.items():
        for b, y in right.items():
            powers = dict(a)
            for atom, power in b:
                powers[atom] = powers.get(atom, 0) + power
            total = _add(total, {tuple(sorted(powers.items())): x * y})
    return total


def _monomial_quotient(dividend: Monomial, divisor: Monomial) -> Monomial | None:
    powers = dict(dividend)
    for atom, power in divisor:
        powers[atom] = powers.get(atom, 0) - power
        if powers[atom] < 0:
            return None
    return tuple((atom, power) for atom, power in sorted(powers.items()) if power)


def _expression(polynomial: Polynomial, atoms: Atoms) -> Expr:
    total: Expr = 0
    for monomial, factor in polynomial.items():
        term: Expr = factor
        for atom, power in monomial:
            for _ in range(power):
                term = term * atoms.expr(atom)
        total = total + term
    return total
