"""Prints expressions over symbolic dimensions: as overflow-checked C, and as text for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tvm import tirx
from tvm.ir import Call

from graphc.codegen.rewrite import walk
from graphc.ir import Expr

_CHECKED: Final = {
    tirx.Add: "gc_add",
    tirx.Sub: "gc_sub",
    tirx.Mul: "gc_mul",
    tirx.Div: "gc_truncdiv",
    tirx.Mod: "gc_truncmod",
    tirx.FloorDiv: "gc_floordiv",
    tirx.FloorMod: "gc_floormod",
}
_EXTREMES: Final = {tirx.Min: "min", tirx.Max: "max"}
_LOGIC: Final = {
    tirx.EQ: "==",
    tirx.NE: "!=",
    tirx.LT: "<",
    tirx.LE: "<=",
    tirx.GT: ">",
    tirx.GE: ">=",
    tirx.And: "&&",
    tirx.Or: "||",
}
# Symbol and binding strength of what `text` prints infix. Dimensions are never negative, so the
# two divisions print alike.
_INFIX: Final[dict[Any, tuple[str, int]]] = {
    tirx.Add: (" + ", 1),
    tirx.Sub: (" - ", 1),
    tirx.Mul: ("*", 2),
    tirx.Div: ("//", 2),
    tirx.Mod: ("%", 2),
    tirx.FloorDiv: ("//", 2),
    tirx.FloorMod: ("%", 2),
}
_ATOM: Final = 3
_INT64: Final = 1 << 63


def c_text(expr: Expr, names: Mapping[str, str]) -> str:
    """C of type int64_t, in a function that has the frame `f`; `names` gives variables' C names.

    Sums, products and quotients go through the runtime's checked helpers.
    """
    if isinstance(expr, int | tirx.IntImm):
        return _c_number(int(expr))
    if isinstance(expr, tirx.Var):
        assert expr.name in names, f"dimension {expr.name!r} is bound by no input"
        return names[expr.name]
    kind = type(expr)
    if kind in _CHECKED:
        return f"{_CHECKED[kind]}(f, {c_text(expr.a, names)}, {c_text(expr.b, names)})"
    if kind in _EXTREMES:
        return f"gc_{_EXTREMES[kind]}({c_text(expr.a, names)}, {c_text(expr.b, names)})"
    if kind in _LOGIC:
        return f"({c_text(expr.a, names)} {_LOGIC[kind]} {c_text(expr.b, names)})"
    if isinstance(expr, tirx.Not):
        return f"(!{c_text(expr.a, names)})"
    if isinstance(expr, tirx.Cast):
        assert expr.ty.dtype in ("int32", "int64"), f"dimension arithmetic narrows to {expr}"
        return c_text(expr.value, names)
    choice = _choice(expr)
    if choice is not None:
        condition, yes, no = (c_text(part, names) for part in choice)
        return f"({condition} ? {yes} : {no})"
    shift = _shift(expr)
    if shift is not None:
        helper, value, factor = shift
        return f"{helper}(f, {c_text(value, names)}, {factor})"
    raise AssertionError(f"no C for {kind.__name__} in the dimension expression {expr}")


def text(expr: Expr) -> str:
    """As one writes it: `2*sequence + 1`, `max(a, b)`."""
    return _text(expr)[0]


def variables(expr: Expr) -> set[str]:
    """Names of the symbolic dimensions in it."""
    if isinstance(expr, int):
        return set()
    return {node.name for node in walk(expr) if isinstance(node, tirx.Var)}


def _c_number(value: int) -> str:
    assert -_INT64 <= value < _INT64, f"{value} does not fit int64"
    if value == -_INT64:
        return "INT64_MIN"
    return str(value) if abs(value) < 1 << 31 else f"INT64_C({value})"


def _text(expr: Any) -> tuple[str, int]:
    if isinstance(expr, int | tirx.IntImm):
        return str(int(expr)), _ATOM if int(expr) >= 0 else 1
    if isinstance(expr, tirx.Var):
        return str(expr.name), _ATOM
    kind = type(expr)
    if kind in _INFIX:
        symbol, strength = _INFIX[kind]
        left, right = _text(expr.a), _text(expr.b)
        # Left-associative: an equal strength on the right needs brackets.
        first = left[0] if left[1] >= strength else f"({left[0]})"
        second = right[0] if right[1] > strength else f"({right[0]})"
        if kind in (tirx.Add, tirx.Mul) and right[1] == strength and type(expr.b) is kind:
            second = right[0]
        return f"{first}{symbol}{second}", strength
    if kind in _EXTREMES:
        return f"{_EXTREMES[kind]}({text(expr.a)}, {text(expr.b)})", _ATOM
    if kind in _LOGIC:
        return f"({text(expr.a)} {_LOGIC[kind]} {text(expr.b)})", _ATOM
    if isinstance(expr, tirx.Cast):
        return _text(expr.value)
    if isinstance(expr, tirx.Not):
        return f"!({text(expr.a)})", _ATOM
    choice = _choice(expr)
    if choice is not None:
        condition, yes, no = (text(part) for part in choice)
        return f"({condition} ? {yes} : {no})", _ATOM
    return str(expr), 0


def _choice(expr: Any) -> tuple[Any, Any, Any] | None:
    if isinstance(expr, tirx.Select):
        return expr.condition, expr.true_value, expr.false_value
    if isinstance(expr, Call) and expr.op.name == "prim.if_then_else":
        return tuple(expr.args)
    return None


def _shift(expr: Any) -> tuple[str, Any, int] | None:
    """A shift by a constant as what it means: (helper, value, power of two)."""
    for kind, helper in ((tirx.LShift, "gc_mul"), (tirx.RShift, "gc_floordiv")):
        if isinstance(expr, kind) and isinstance(expr.b, tirx.IntImm) and 0 <= int(expr.b) < 63:
            return helper, expr.a, 1 << int(expr.b)
    return None
