"""Rewrites TIR expressions bottom up; TVM 0.27 offers no expression functor to Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tvm import tirx
from tvm.ir import Call, TensorLoad

_LEAVES = (tirx.IntImm, tirx.FloatImm)
_BINARY = (
    tirx.Add,
    tirx.Sub,
    tirx.Mul,
    tirx.Div,
    tirx.Mod,
    tirx.FloorDiv,
    tirx.FloorMod,
    tirx.Min,
    tirx.Max,
    tirx.EQ,
    tirx.NE,
    tirx.LT,
    tirx.LE,
    tirx.GT,
    tirx.GE,
    tirx.And,
    tirx.Or,
    tirx.BitwiseAnd,
    tirx.BitwiseOr,
    tirx.BitwiseXor,
    tirx.LShift,
    tirx.RShift,
)


def rewrite(expr: Any, replace: Callable[[Any], Any | None]) -> Any:
    """Builds `expr` anew: where `replace(node)` is not None it stands for the node, unvisited.

    `replace` sees each node before its operands. Nodes whose operands did not change are shared.
    """
    new = replace(expr)
    if new is not None:
        return new
    return rebuild(expr, [rewrite(operand, replace) for operand in operands(expr)])


def operands(expr: Any) -> list[Any]:
    """The direct operands of an expression, in the order that `rebuild` takes them."""
    if isinstance(expr, _BINARY):
        return [expr.a, expr.b]
    if isinstance(expr, Call):
        return list(expr.args)
    if isinstance(expr, TensorLoad):
        return list(expr.indices)
    if isinstance(expr, tirx.Cast | tirx.Broadcast):
        return [expr.value]
    if isinstance(expr, tirx.Not | tirx.BitwiseNot):
        return [expr.a]
    if isinstance(expr, tirx.Select):
        return [expr.condition, expr.true_value, expr.false_value]
    if isinstance(expr, tirx.Let):
        return [expr.value, expr.body]
    if isinstance(expr, tirx.Ramp):
        return [expr.base, expr.stride]
    return []


def rebuild(expr: Any, new: list[Any]) -> Any:
    """The same node over other operands."""
    if all(a.same_as(b) for a, b in zip(operands(expr), new, strict=True)):
        return expr
    if isinstance(expr, Call):
        return Call(expr.op, new, attrs=expr.attrs, ret_ty=expr.ty)
    if isinstance(expr, TensorLoad):
        return tirx.BufferLoad(expr.source, new)
    if isinstance(expr, tirx.Cast):
        return tirx.Cast(expr.ty, *new)
    if isinstance(expr, tirx.Broadcast):
        return tirx.Broadcast(new[0], expr.lanes)
    if isinstance(expr, tirx.Let):
        return tirx.Let(expr.var, *new)
    if isinstance(expr, tirx.Ramp):
        return tirx.Ramp(new[0], new[1], expr.lanes)
    return type(expr)(*new)


def walk(expr: Any) -> Iterator[Any]:
    """Every node of an expression, parents first."""
    yield expr
    for operand in operands(expr):
        yield from walk(operand)
