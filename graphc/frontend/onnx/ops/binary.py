"""Operators on two or more tensors, element by element, with broadcasting."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op

from graphc.frontend.onnx import fold
from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.fold import elementwise
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.table import Convert, Fold, IntervalRule, Operator, Result, Table
from graphc.frontend.onnx.values import FLOATS, INTEGERS, Interval, KnownValue, Value

_Operation = Callable[[relax.Expr, relax.Expr], relax.Expr]


def _binary(operation: _Operation, check: Callable[[Node, Value], None]) -> Convert:
    def convert(context: Context, node: Node) -> Result:
        left, right = node.input(0), node.input(1)
        node.same_dtype(left, right)
        check(node, left)
        exprs, _ = context.broadcast(node, left, right)
        return operation(*exprs)

    return convert


def _any(node: Node, value: Value) -> None:
    """Every type will do."""


def _variadic(operation: _Operation) -> Convert:
    def convert(context: Context, node: Node) -> Result:
        values = node.all_inputs()
        node.same_dtype(*values)
        node.need_number(values[0])
        if len(values) == 1:
            return values[0]
        exprs, _ = context.broadcast(node, *values)
        name = node.outputs[0]
        total = exprs[0]
        for index, expr in enumerate(exprs[1:-1]):
            total = context.emit(operation(total, expr), f"{name}.{index}").var
        return operation(total, exprs[-1])

    return convert


def _mean(context: Context, node: Node) -> Result:
    total = _variadic(op.add)(context, node)
    if not isinstance(total, relax.Expr):
        return total
    count = context.constant(len(node.inputs), node.input(0).dtype)
    return op.divide(context.emit(total, f"{node.outputs[0]}.sum").var, count)


# -- division ------------------------------------------------------------------------------


def _divide(context: Context, node: Node) -> Result:
    """Towards zero for integers; a zero divisor, undefined in ONNX, must not trap."""
    left, right = node.input(0), node.input(1)
    node.same_dtype(left, right)
    node.need_number(left)
    (a, b), _ = context.broadcast(node, left, right)
    quotient = op.divide(a, _safe_divisor(context, node, right, b))
    if isinstance(right, KnownValue) or not right.dtype.startswith("int"):
        return quotient
    minus_one = op.equal(b, context.constant(-1, right.dtype))
    return op.where(minus_one, op.negative(a), quotient)


def _safe_divisor(context: Context, node: Node, value: Value, expr: relax.Expr) -> relax.Expr:
    if value.dtype in FLOATS:
        return expr
    if isinstance(value, KnownValue):
        if value.symbolic or value.data.all():
            return expr
        raise node.error("it divides integers by a constant 0")
    # The processor traps on x / 0 and on the smallest integer / -1. Remainders by 1 and by -1 are
    # both 0; a quotient by -1 is put right by _divide.
    traps = op.equal(expr, context.constant(0, value.dtype))
    if value.dtype.startswith("int"):
        minus_one = op.equal(expr, context.constant(-1, value.dtype))
        traps = op.logical_or(traps, minus_one)
    trapping = context.emit(traps, f"{value.name}.traps").var
    one = context.constant(1, value.dtype)
    return context.emit(op.where(trapping, one, expr), f"{value.name}.divisor").var


def _modulo(context: Context, node: Node) -> Result:
    """The sign of the divisor, or with fmod that of the dividend."""
    left, right = node.input(0), node.input(1)
    node.same_dtype(left, right)
    node.need_number(left)
    fmod = node.integer("fmod", 0)
    (a, b), _ = context.broadcast(node, left, right)
    if left.dtype in FLOATS and not fmod:
        return _floor_modulo(context, node, a, b, left.dtype)
    if left.dtype == "bfloat16":  # a remainder of two has no more digits than they have
        name = node.outputs[0]
        wide = [context.emit(op.astype(x, "float32"), f"{name}.float").var for x in (a, b)]
        return op.astype(context.emit(op.mod(*wide), f"{name}.rest").var, left.dtype)
    b = _safe_divisor(context, node, right, b)
    return op.mod(a, b) if fmod else op.floor_mod(a, b)


def _floor_modulo(
    context: Context, node: Node, a: relax.Expr, b: relax.Expr, dtype: str
) -> relax.Expr:
    """The exact remainder, moved by one divisor where its sign is not the divisor's."""
    name, zero = node.outputs[0], context.constant(0, dtype)
    rest = context.emit(op.mod(a, b), f"{name}.rest").var
    below = context.emit(op.less(rest, zero), f"{name}.below").var
    backwards = context.emit(op.less(b, zero), f"{name}.backwards").var
    # A remainder of 0 is right whatever the divisor's sign.
    differ = context.emit(op.logical_xor(below, backwards), f"{name}.differ").var
    some = context.emit(op.not_equal(rest, zero), f"{name}.some").var
    wrong = context.emit(op.logical_and(differ, some), f"{name}.wrong").var
    return op.where(wrong, context.emit(op.add(rest, b), f"{name}.moved").var, rest)


def _numpy_divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind not in "iu":
        return np.asarray(np.divide(a, b))
    if not np.all(b):
        raise ZeroDivisionError("integer division by zero")
    quotient = np.floor_divide(a, b)
    rounded_down = (quotient < 0) & (quotient * b != a)
    return np.asarray(quotient + rounded_down, a.dtype)


def _fold_modulo(context: Context, node: Node, arrays: Any) -> Any:
    numeric = np.fmod if node.integer("fmod", 0) else np.mod
    if any(a is not None and a.dtype != object and a.dtype.kind in "iu" and not a.all()
           for a in arrays[1:]):  # fmt: skip
        raise node.error("it divides integers by a constant 0")
    return elementwise(numeric, fold.modulo)(context, node, arrays)


# -- power ---------------------------------------------------------------------------------


def _power(context: Context, node: Node) -> Result:
    """The result has the base's type, whatever the exponent's."""
    base, exponent = node.input(0), node.input(1)
    node.need_number(base)
    node.need_number(exponent)
    (a, b), _ = context.broadcast(node, base, exponent)
    name = node.outputs[0]
    # float16 and integers are raised in a type that holds them and their power.
    wide = base.dtype if base.dtype in ("float32", "float64") else (
        "float64" if base.dtype in INTEGERS else "float32"
    )  # fmt: skip
    a = a if base.dtype == wide else context.emit(op.astype(a, wide), f"{name}.base").var
    if exponent.dtype != wide:
        b = context.emit(op.astype(b, wide), f"{name}.exponent").var
    if base.dtype == wide:
        return op.power(a, b)
    return op.astype(context.emit(op.power(a, b), f"{name}.power").var, base.dtype)


def _fold_power(context: Context, node: Node, arrays: Any) -> Any:
    dtype = node.input(0).dtype
    if (
        dtype in INTEGERS
        and arrays[1] is not None
        and (arrays[1].dtype == object or (arrays[1] < 0).any())
    ):
        return None
    power = elementwise(lambda a, b: np.power(a, b).astype(a.dtype), alike=False)
    return power(context, node, arrays)


# -- where, shifts -------------------------------------------------------------------------


def _where(context: Context, node: Node) -> Result:
    condition, left, right = node.input(0), node.input(1), node.input(2)
    node.need_bool(condition)
    node.same_dtype(left, right)
    exprs, _ = context.broadcast(node, condition, left, right)
    return op.where(*exprs)


def _fold_where(context: Context, node: Node, arrays: Any) -> Any:
    def choose(symbols: Any, condition: Any, left: Any, right: Any) -> Any:
        return left if condition else right

    node.need_bool(node.input(0))
    node.same_dtype(node.input(1), node.input(2))
    return elementwise(np.where, choose, alike=False)(context, node, arrays)


def _shift(context: Context, node: Node) -> Result:
    """Shifts by less than 0 or by all bits give what shifting one bit at a time for ever would."""
    left, right = node.input(0), node.input(1)
    node.same_dtype(left, right)
    node.need_integer(left)
    (x, by), _ = context.broadcast(node, left, right)
    name, dtype = node.outputs[0], left.dtype
    bits = np.dtype(dtype).itemsize * 8
    beyond = context.emit(op.greater_equal(by, context.constant(bits, dtype)), f"{name}.beyond").var
    signed = dtype.startswith("int")
    if signed:
        negative = context.emit(op.less(by, context.constant(0, dtype)), f"{name}.negative").var
        beyond = context.emit(op.logical_or(beyond, negative), f"{name}.out").var
    left_shift = node.choice("direction", "", ("LEFT", "RIGHT")) == "LEFT"
    keeps_sign = signed and not left_shift
    most = context.constant(bits - 1 if keeps_sign else 0, dtype)
    by = context.emit(op.where(beyond, most, by), f"{name}.by").var
    result = (op.left_shift if left_shift else op.right_shift)(x, by)
    if keeps_sign:
        return result
    result = context.emit(result, f"{name}.shifted").var
    return op.where(beyond, context.constant(0, dtype), result)


def _prelu(context: Context, node: Node) -> Result:
    """x where x >= 0, slope * x elsewhere; the slope broadcasts one way."""
    value, slope = node.input(0), node.input(1)
    node.same_dtype(value, slope)
    (x, by), _ = context.broadcast(node, value, slope)
    name = node.outputs[0]
    scaled = context.emit(op.multiply(x, by), f"{name}.scaled").var
    negative = context.emit(op.less(x, context.constant(0, value.dtype)), f"{name}.negative").var
    return op.where(negative, scaled, x)


# -- intervals -----------------------------------------------------------------------------


def _pairwise(rule: Callable[[Context, Interval, Interval], Interval | None]) -> IntervalRule:
    def interval(context: Context, node: Node) -> Interval | None:
        known = [context.interval(value) for value in node.all_inputs()]
        bounds = [item for item in known if item is not None]
        if len(bounds) != len(known):
            return None
        total: Interval | None = bounds[0]
        for item in bounds[1:]:
            total = None if total is None else rule(context, total, item)
        return total

    return interval


def _point(interval: Interval) -> bool:
    return interval.low is interval.high or str(interval.low) == str(interval.high)


def _add_interval(context: Context, a: Interval, b: Interval) -> Interval:
    reached = a.reached and b.reached and (_point(a) or _point(b))
    symbols = context.symbols
    return Interval(symbols.simplify(a.low + b.low), symbols.simplify(a.high + b.high), reached)


def _subtract_interval(context: Context, a: Interval, b: Interval) -> Interval:
    symbols = context.symbols
    reached = a.reached and _point(b)
    return Interval(symbols.simplify(a.low - b.high), symbols.simplify(a.high - b.low), reached)


def _multiply_interval(context: Context, a: Interval, b: Interval) -> Interval | None:
    symbols = context.symbols
    if not (symbols.at_most(0, a.low) and symbols.at_most(0, b.low)):
        return None
    return Interval(symbols.simplify(a.low * b.low), symbols.simplify(a.high * b.high))


def _max_interval(context: Context, a: Interval, b: Interval) -> Interval:
    symbols = context.symbols
    return Interval(symbols.maximum(a.low, b.low), symbols.maximum(a.high, b.high))


def _min_interval(context: Context, a: Interval, b: Interval) -> Interval:
    symbols = context.symbols
    return Interval(symbols.minimum(a.low, b.low), symbols.minimum(a.high, b.high))


def _where_interval(context: Context, node: Node) -> Interval | None:
    a, b = context.interval(node.input(1)), context.interval(node.input(2))
    if a is None or b is None:
        return None
    symbols = context.symbols
    return Interval(symbols.minimum(a.low, b.low), symbols.maximum(a.high, b.high))


def _modulo_interval(context: Context, node: Node) -> Interval | None:
    divisor = context.interval(node.input(1))
    if node.integer("fmod", 0) or divisor is None or not context.symbols.at_most(1, divisor.low):
        return None
    return Interval(0, context.symbols.simplify(divisor.high - 1))


# -- folds ---------------------------------------------------------------------------------


def _reduced(numeric: Callable[..., Any], symbolic: Callable[..., Any] | None) -> Fold:
    """A fold over any number of inputs."""

    def all_numeric(*arrays: np.ndarray) -> Any:
        return functools.reduce(numeric, arrays)

    def all_symbolic(symbols: Any, *elements: Any) -> Any:
        assert symbolic is not None, numeric
        return functools.reduce(lambda a, b: symbolic(symbols, a, b), elements)

    return elementwise(all_numeric, all_symbolic if symbolic else None)


def _swapped(symbols: Any, left: Any, right: Any) -> bool:
    return fold.less(symbols, right, left)


_ADD = Operator(_binary(op.add, Node.need_number), elementwise(np.add, fold.add),
                _pairwise(_add_interval))  # fmt: skip
_SUB = Operator(_binary(op.subtract, Node.need_number), elementwise(np.subtract, fold.subtract),
                _pairwise(_subtract_interval))  # fmt: skip
_MUL = Operator(_binary(op.multiply, Node.need_number), elementwise(np.multiply, fold.multiply),
                _pairwise(_multiply_interval))  # fmt: skip

TABLE: Table = {
    ("", "Add", 7): _ADD,
    ("", "Sub", 7): _SUB,
    ("", "Mul", 7): _MUL,
    ("", "Div", 7): Operator(_divide, elementwise(_numpy_divide, fold.divide)),
    ("", "Mod", 10): Operator(_modulo, _fold_modulo, _modulo_interval),
    ("", "Pow", 7): Operator(_power, _fold_power),
    ("", "Max", 6): Operator(_variadic(op.maximum), _reduced(np.maximum, fold.maximum),
                             _pairwise(_max_interval)),
    ("", "Min", 6): Operator(_variadic(op.minimum), _reduced(np.minimum, fold.minimum),
                             _pairwise(_min_interval)),
    ("", "Sum", 6): Operator(_variadic(op.add), _reduced(np.add, fold.add)),
    ("", "Mean", 6): Operator(_mean),
    ("", "Where", 9): Operator(_where, _fold_where, _where_interval),
    ("", "PRelu", 7): Operator(_prelu),
    ("", "BitShift", 11): Operator(_shift),
    ("", "BitwiseAnd", 18): Operator(_binary(op.bitwise_and, Node.need_integer)),
    ("", "BitwiseOr", 18): Operator(_binary(op.bitwise_or, Node.need_integer)),
    ("", "BitwiseXor", 18): Operator(_binary(op.bitwise_xor, Node.need_integer)),
    ("", "And", 7): Operator(_binary(op.logical_and, Node.need_bool),
                             elementwise(np.logical_and)),
    ("", "Or", 7): Operator(_binary(op.logical_or, Node.need_bool), elementwise(np.logical_or)),
    ("", "Xor", 7): Operator(_binary(op.logical_xor, Node.need_bool),
                             elementwise(np.logical_xor)),
    ("", "Equal", 7): Operator(_binary(op.equal, _any), elementwise(np.equal, fold.equal)),
    ("", "Less", 7): Operator(_binary(op.less, Node.need_number), elementwise(np.less, fold.less)),
    ("", "Greater", 7): Operator(_binary(op.greater, Node.need_number),
                                 elementwise(np.greater, _swapped)),
    ("", "LessOrEqual", 12): Operator(
        _binary(op.less_equal, Node.need_number),
        elementwise(np.less_equal, lambda s, a, b: not fold.less(s, b, a))),
    ("", "GreaterOrEqual", 12): Operator(
        _binary(op.greater_equal, Node.need_number),
        elementwise(np.greater_equal, lambda s, a, b: not fold.less(s, a, b))),
}  # fmt: skip
