"""The symbolic dimensions of one import: their bounds, proofs about them, and what is assumed.

All arithmetic on dimensions goes through here, so that equal dimensions are equal expressions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, sym, tirx

from graphc.errors import ConfigError, ModelError
from graphc.frontend.onnx import polynomial
from graphc.ir import Constraint, Dim, Expr

INT64_MAX = 2**63 - 1
# No dimension or element count above this is a real tensor, and products still fit in int64.
MAX_ELEMENTS = 2**47
# A shape of a real model has fewer than 20 terms; TVM recurses over expressions.
MAX_EXPRESSION = 200


class TightenedError(Exception):
    """A node proves a bound of a dimension: import again with that known.

    `side` is "lower" or "upper".
    """

    def __init__(self, name: str, side: str, bound: int, reason: str) -> None:
        super().__init__(name, side, bound, reason)
        self.name, self.side, self.bound, self.reason = name, side, bound, reason


@dataclass(frozen=True)
class Bounds:
    """What the user said and what the graph implies about a dimension."""

    lower: int = 1
    upper: int | None = None


def parse_bounds(dims: Mapping[str, int | tuple[int, int | None]]) -> dict[str, int | Bounds]:
    """Checks the `dims` argument of `load`."""
    parsed: dict[str, int | Bounds] = {}
    for name, given in dims.items():
        low, high = (given, given) if isinstance(given, int) else given
        if low < 0 or (isinstance(given, int) and low < 1):
            raise ConfigError(f"dimension {name}: {low} is below 1: give a positive number")
        if high is not None and (high < max(low, 1) or high > MAX_ELEMENTS):
            raise ConfigError(
                f"dimension {name}: {low}..{high} is empty or too large: give low..high"
            )
        parsed[name] = low if low == high else Bounds(low, high)
    return parsed


class Symbols:
    """Creates dimensions and reasons about expressions over them."""

    def __init__(
        self,
        given: Mapping[str, int | Bounds],
        implied: Mapping[tuple[str, str], tuple[int, str]],
    ) -> None:
        self.dims: dict[str, Dim] = {}
        self.constraints: list[Constraint] = []
        self._given = given
        self._implied = implied
        self._vars: dict[str, tirx.Var] = {}
        self._names: dict[tirx.Var, str] = {}
        self._analyzer = sym.Analyzer()
        self._assumed: dict[tuple[str, str], Expr] = {}
        self._late: set[str] = set()

    def dim(self, name: str) -> Expr:
        """The dimension called `name`: a number when the user fixed it, else a shared variable."""
        given = self._given.get(name, Bounds())
        if isinstance(given, int):
            self.dims.setdefault(name, Dim(name, given, given))
            return given
        if name not in self._vars:
            self._declare(name, given)
        return self._vars[name]

    def fresh(self, name: str, lower: int = 0, upper: int | None = None) -> tirx.Var:
        """A dimension that becomes known in mid-run; `name` gets a suffix where it is taken."""
        unique, count = name, 1
        while unique in self.dims:
            unique, count = f"{name}_{count}", count + 1
        self._late.add(unique)
        self._declare(unique, Bounds(lower, upper))
        return self._vars[unique]

    @property
    def variables(self) -> Mapping[str, tirx.Var]:
        """The variables of all dimensions up to now, by name."""
        return self._vars

    @contextmanager
    def scope(self) -> Iterator[list[Constraint]]:
        """What is assumed in it holds in it only; gives the list of its constraints."""
        constraints, assumed = self.constraints, self._assumed
        self.constraints, self._assumed = [], dict(assumed)
        try:
            yield self.constraints
        finally:
            self.constraints, self._assumed = constraints, assumed

    def _declare(self, name: str, given: Bounds) -> None:
        lower, upper = given.lower, given.upper
        if (name, "upper") in self._implied:
            most, reason = self._implied[name, "upper"]
            if upper is not None and upper > most and name not in self._late:
                raise ConfigError(
                    f"dimension {name}: {upper} was asked for, the model takes at most {most}: "
                    f"{reason}"
                )
            upper = most if upper is None else min(upper, most)
        if (name, "lower") in self._implied:
            least, reason = self._implied[name, "lower"]
            if upper is not None and least > upper:
                raise ModelError(f"dimension {name} would have to be {least} to {upper}: {reason}")
            lower = max(lower, least)
        if upper is not None and upper < lower:
            _, reason = self._implied[name, "upper"]
            raise ModelError(f"dimension {name} would have to be {lower} to {upper}: {reason}")
        dim = Dim(name, lower, upper)
        var = tirx.Var(name, "int64")
        # Without an upper bound TVM would treat products as if they could overflow.
        top = MAX_ELEMENTS if dim.upper is None else dim.upper
        self._analyzer.bind(var, ir.Range(dim.lower, top + 1))
        self.dims[name], self._vars[name], self._names[var] = dim, var, name

    def check_names(self) -> None:
        """Every name that the user gave must be a dimension of an input."""
        unknown = sorted(set(self._given) - set(self.dims))
        if unknown:
            known = ", ".join(sorted(self.dims)) or "none: all shapes are fixed"
            raise ConfigError(
                f"no input has a dimension called {', '.join(unknown)}: the model has {known}"
            )

    def symbolic_dims(self) -> tuple[Dim, ...]:
        return tuple(self.dims[name] for name in self._vars if name not in self._late)

    # -- arithmetic ------------------------------------------------------------------------

    def simplify(self, expr: Expr) -> Expr:
        """The canonical form: a Python int where the value is known."""
        if isinstance(expr, int):
            return expr
        if isinstance(expr, tirx.IntImm):
            return int(expr.value)
        if isinstance(expr, tirx.Var):
            return expr
        _check_size(expr)
        result = self._analyzer.simplify(expr)
        return int(result.value) if isinstance(result, tirx.IntImm) else result

    def product(self, factors: tuple[Expr, ...] | list[Expr]) -> Expr:
        total: Expr = 1
        for factor in factors:
            total = total * factor
        return self.simplify(total)

    def floordiv(self, left: Expr, right: Expr) -> Expr:
        """Floor division; the caller has excluded a zero divisor."""
        if isinstance(left, int) and isinstance(right, int):
            return left // right
        quotient = self.exact_quotient(left, right)
        if quotient is not None:
            return quotient
        return self.simplify(tirx.floordiv(_expr(left), _expr(right)))

    def exact_quotient(self, left: Expr, right: Expr) -> Expr | None:
        """left / right when no value of the dimensions leaves a remainder."""
        if isinstance(left, int) and isinstance(right, int):
            return left // right if right and left % right == 0 else None
        quotient = polynomial.divide(left, right)
        return None if quotient is None else self.simplify(quotient)

    def minimum(self, left: Expr, right: Expr) -> Expr:
        if isinstance(left, int) and isinstance(right, int):
            return min(left, right)
        return self.simplify(tirx.Min(_expr(left), _expr(right)))

    def maximum(self, left: Expr, right: Expr) -> Expr:
        if isinstance(left, int) and isinstance(right, int):
            return max(left, right)
        return self.simplify(tirx.Max(_expr(left), _expr(right)))

    # -- proofs ----------------------------------------------------------------------------

    def proves(self, condition: tirx.Expr | bool) -> bool:
        return condition if isinstance(condition, bool) else self._analyzer.can_prove(condition)

    def equal(self, left: Expr, right: Expr) -> bool:
        """Whether both are the same for every allowed value of the dimensions."""
        if same(left, right):
            return True
        if isinstance(left, int) and isinstance(right, int):
            return False
        if polynomial.equal(left, right):
            return True
        return bool(self._analyzer.can_prove_equal(_expr(left), _expr(right)))

    def at_most(self, left: Expr, right: Expr) -> bool:
        if isinstance(left, int) and isinstance(right, int):
            return left <= right
        if isinstance(left, int) and not _fits(left):
            return left < 0  # every dimension fits in 64 bits
        if isinstance(right, int) and not _fits(right):
            return right > 0
        return bool(self._analyzer.can_prove(_expr(left) <= _expr(right)))

    def differ(self, left: Expr, right: Expr) -> bool:
        """Whether both are different for every allowed value of the dimensions."""
        return self.at_most(left + 1, right) or self.at_most(right + 1, left)

    # -- assumptions -----------------------------------------------------------------------

    def unify(self, left: Expr, right: Expr, where: str) -> Expr:
        """The common value of two dimensions that `where` needs to be equal.

        Raises ModelError when they cannot be, and records a constraint when they merely may.
        """
        if self.equal(left, right):
            return _simpler(left, right)
        known = self._assumed.get((str(left), str(right)))
        if known is not None:
            return known
        self._imply_minimum(left, right, where)
        self._imply_minimum(right, left, where)
        if self.differ(left, right):
            raise ModelError(f"{where}: dimensions {left} and {right} do not match")
        self.constraints.append(Constraint(left, right, where))
        common = _simpler(left, right)
        self._assumed[str(left), str(right)] = self._assumed[str(right), str(left)] = common
        return common

    def _imply_minimum(self, value: Expr, least: Expr, where: str) -> None:
        """value == min(value, limit) means value <= limit, which is cheaper than a constraint."""
        if not isinstance(least, tirx.Min):
            return
        for one, other in ((least.a, least.b), (least.b, least.a)):
            if self.equal(value, one):
                self.imply_at_most(value, self.simplify(other), where)

    def imply_at_most(self, value: Expr, limit: Expr, where: str) -> bool:
        """Raises TightenedError when value <= limit bounds a dimension; False when it does not."""
        if self.at_most(value, limit):
            return False
        terms = polynomial.linear(value - limit)
        if terms is None:
            return False
        factor, var, constant = terms
        if factor > 0:
            raise TightenedError(self._names[var], "upper", -constant // factor, where)
        raise TightenedError(self._names[var], "lower", -(constant // factor), where)

    def require_at_most(self, left: Expr, right: Expr, where: str) -> None:
        """left <= right, or the model is wrong: proved, made a bound, or checked at run time."""
        if self.at_most(left, right):
            return
        if self.at_most(right + 1, left):
            raise ModelError(f"{where}: {left} is more than {right}")
        self.imply_at_most(left, right, where)
        self.unify(self.maximum(left, right), right, where)


def same(left: Expr, right: Expr) -> bool:
    """Structural equality of canonical expressions."""
    if isinstance(left, int) or isinstance(right, int):
        return isinstance(left, int) and isinstance(right, int) and left == right
    return bool(left.same_as(right)) or bool(tvm_ffi.structural_equal(left, right))


def _fits(value: int) -> bool:
    return -INT64_MAX - 1 <= value <= INT64_MAX


def _expr(value: Expr) -> tirx.Expr:
    if isinstance(value, int) and not _fits(value):
        raise OverflowError(f"{value} does not fit in 64 bits")
    return tirx.IntImm("int64", value) if isinstance(value, int) else value


def _simpler(left: Expr, right: Expr) -> Expr:
    """Numbers before variables before expressions; the left one when both are alike."""

    def rank(expr: Expr) -> int:
        return 0 if isinstance(expr, int) else 1 if isinstance(expr, tirx.Var) else 2

    return left if rank(left) <= rank(right) else right


def _check_size(expr: Expr) -> None:
    pending, count = [expr], 0
    while pending:
        node = pending.pop()
        count += 1
        if count > MAX_EXPRESSION:
            raise ModelError(
                f"a shape is an expression of more than {MAX_EXPRESSION} terms: "
                "no tensor of a real model has such a shape"
            )
        if not isinstance(node, (int, tirx.Var, tirx.IntImm)):
            pending.extend(
                part
                for part in (getattr(node, "a", None), getattr(node, "b", None))
                if part is not None
            )
