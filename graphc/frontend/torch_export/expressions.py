"""torch's symbolic integers (sympy) -> dimensions: only what is total and exact over integers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import tirx

from graphc.errors import UnsupportedError
from graphc.frontend.onnx.symbols import Symbols
from graphc.ir import Expr

_MAX_DEPTH = 50


class Expressions:
    """Converts expressions over torch's symbols; `dims` has the dimension of each symbol."""

    def __init__(self, symbols: Symbols, dims: Mapping[str, Expr]) -> None:
        self._symbols, self._dims = symbols, dims

    def dim(self, extent: Any) -> Expr:
        """A Python int or torch.SymInt as a dimension."""
        if isinstance(extent, int):
            return extent
        return self.expression(extent.node.expr)

    def expression(self, expr: Any, depth: int = 0) -> Expr:
        """Raises UnsupportedError for what depends on data or is not an integer."""
        if expr.is_Integer:
            return int(expr)
        if expr.is_Symbol:
            if str(expr) not in self._dims:
                raise UnsupportedError(
                    f"a shape depends on the values of a tensor ({expr}): export the model so that "
                    "shapes depend on shapes only"
                )
            return self._dims[str(expr)]
        if depth > _MAX_DEPTH:
            raise UnsupportedError(f"the shape {str(expr)[:80]}... is nested too deeply")
        kind = type(expr).__name__
        if kind == "Mul" and any(arg.is_Rational and not arg.is_Integer for arg in expr.args):
            return self._fraction(expr, depth)
        args = [self.expression(arg, depth + 1) for arg in expr.args]
        made = self._combined(kind, args)
        if made is None:
            raise UnsupportedError(f"the shape {expr} is not a whole-number expression ({kind})")
        return self._symbols.simplify(made)

    def _fraction(self, expr: Any, depth: int) -> Expr:
        """n * x / d, which torch has proved to be whole."""
        numerator, denominator = expr.as_numer_denom()
        return self._symbols.floordiv(
            self.expression(numerator, depth + 1), self.expression(denominator, depth + 1)
        )

    def _combined(self, kind: str, args: list[Expr]) -> Expr | None:
        symbols = self._symbols
        total = args[0]
        if kind in ("Add", "Mul", "Max", "Min"):
            for arg in args[1:]:
                if kind == "Add":
                    total = total + arg
                elif kind == "Mul":
                    total = total * arg
                else:
                    total = (symbols.maximum if kind == "Max" else symbols.minimum)(total, arg)
            return total
        if kind in ("Pow", "PowByNatural") and isinstance(args[1], int) and 0 <= args[1] <= 16:
            return symbols.product([total] * args[1])
        if kind in ("ToFloat", "TruncToInt", "FloorToInt", "CeilToInt", "RoundToInt"):
            return total  # of a whole number, as all are here
        if len(args) != 2 or not symbols.at_most(1, args[1]):
            return None
        if kind in ("FloorDiv", "CleanDiv", "IntTrueDiv"):
            if kind == "IntTrueDiv" and symbols.exact_quotient(total, args[1]) is None:
                return None
            return symbols.floordiv(total, args[1])
        if kind == "CeilDiv":
            return symbols.floordiv(total + args[1] - 1, args[1])
        if kind in ("Mod", "PythonMod"):
            return total - symbols.floordiv(total, args[1]) * args[1]
        return None


def relation(expr: Any) -> tuple[str, Any, Any] | None:
    """("==" | "<=", left, right) of a comparison that torch asserts; None for other conditions."""
    kind = type(expr).__name__
    if kind == "Equality":
        return "==", expr.lhs, expr.rhs
    if kind in ("LessThan", "StrictLessThan"):
        return "<=", expr.lhs + (kind == "StrictLessThan"), expr.rhs
    if kind in ("GreaterThan", "StrictGreaterThan"):
        return "<=", expr.rhs + (kind == "StrictGreaterThan"), expr.lhs
    return None


def variable(expr: Expr) -> bool:
    """Whether it is a dimension by itself."""
    return isinstance(expr, tirx.Var)
