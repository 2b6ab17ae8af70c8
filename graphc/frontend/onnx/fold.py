"""Arithmetic on known values: numpy for plain numbers, symbolic for what depends on dimensions.

Elements of a symbolic array are numbers, dimensions and exact ratios of them. A step that leaves
these (a square root of a dimension, a comparison that nothing decides) is not folded: the value is
then computed at run time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from tvm import tirx

from graphc.frontend.onnx.context import FOLD_LIMIT, Context
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.symbols import Symbols
from graphc.frontend.onnx.table import Fold
from graphc.frontend.onnx.values import Ratio
from graphc.ir import Expr

# Floats with larger denominators (1/14 in float32, say) are rounded and not the ratio meant.
_MAX_DENOMINATOR = 1024


class UndecidedError(Exception):
    """The symbolic result is not an expression over the dimensions."""


def elementwise(
    numeric: Callable[..., Any], symbolic: Callable[..., Any] | None = None, alike: bool = True
) -> Fold:
    """A fold that applies `numeric` to whole arrays, or `symbolic(symbols, *elements)` to each.

    `alike`: the node's inputs must have one type.
    """

    def fold(
        context: Context, node: Node, arrays: Sequence[np.ndarray | None]
    ) -> np.ndarray | None:
        given = [array for array in arrays if array is not None]
        if len(given) != len(arrays) or not given:
            return None
        if alike:
            node.same_dtype(*(value for value in node.inputs if value is not None))
        shape = context.broadcast_shape(node, *(array.shape for array in given))
        if math.prod(extent for extent in shape if isinstance(extent, int)) > FOLD_LIMIT:
            return None
        if all(array.dtype != object for array in given):
            return np.asarray(numeric(*given))
        if symbolic is None:
            return None
        try:
            return each(lambda *elements: symbolic(context.symbols, *elements), *given)
        except UndecidedError:
            return None

    return fold


def each(function: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    """The function of every element, with broadcasting; boolean when every result is."""
    spread = np.broadcast_arrays(*arrays)
    result = np.empty(spread[0].shape, object)
    for index in np.ndindex(*result.shape):
        result[index] = function(*(_plain(array[index]) for array in spread))
    if result.size and all(isinstance(element, bool) for element in result.flat):
        return result.astype(bool)
    return result


def _plain(element: Any) -> Any:
    return element.item() if isinstance(element, np.generic) else element


def ratio(element: Any) -> Ratio:
    """An element as an exact ratio."""
    if isinstance(element, Ratio):
        return element
    if isinstance(element, float):
        if not np.isfinite(element):
            raise UndecidedError
        exact = Fraction(element)
        if exact.denominator > _MAX_DENOMINATOR:
            raise UndecidedError
        return Ratio(exact.numerator, exact.denominator)
    return Ratio(element, 1)


def add(symbols: Symbols, left: Any, right: Any) -> Any:
    if _whole(left, right):
        return symbols.simplify(left + right)
    a, b = ratio(left), ratio(right)
    return _ratio(
        symbols,
        a.numerator * b.denominator + b.numerator * a.denominator,
        a.denominator * b.denominator,
    )


def negate(symbols: Symbols, element: Any) -> Any:
    return multiply(symbols, element, -1)


def subtract(symbols: Symbols, left: Any, right: Any) -> Any:
    return add(symbols, left, negate(symbols, right))


def multiply(symbols: Symbols, left: Any, right: Any) -> Any:
    if _whole(left, right):
        return symbols.simplify(left * right)
    a, b = ratio(left), ratio(right)
    return _ratio(symbols, a.numerator * b.numerator, a.denominator * b.denominator)


def divide(symbols: Symbols, left: Any, right: Any) -> Any:
    """Truncating for integers (proved not to be negative), exact for floats."""
    if _whole(left, right):
        if symbols.at_most(0, left) and symbols.at_most(1, right):
            return symbols.floordiv(left, right)
        quotient = symbols.exact_quotient(left, right)
        if quotient is None:
            raise UndecidedError
        return quotient
    a, b = ratio(left), ratio(right)
    if not symbols.at_most(1, b.numerator):
        raise UndecidedError
    return _ratio(symbols, a.numerator * b.denominator, a.denominator * b.numerator)


def modulo(symbols: Symbols, left: Any, right: Any) -> Any:
    if not _whole(left, right) or not symbols.at_most(1, right) or not symbols.at_most(0, left):
        raise UndecidedError
    return subtract(symbols, left, multiply(symbols, symbols.floordiv(left, right), right))


def minimum(symbols: Symbols, left: Any, right: Any) -> Any:
    if not _whole(left, right):
        raise UndecidedError
    return symbols.minimum(left, right)


def maximum(symbols: Symbols, left: Any, right: Any) -> Any:
    if not _whole(left, right):
        raise UndecidedError
    return symbols.maximum(left, right)


def floor(symbols: Symbols, element: Any) -> Any:
    value = ratio(element)
    return Ratio(symbols.floordiv(value.numerator, value.denominator), 1)


def ceil(symbols: Symbols, element: Any) -> Any:
    return negate(symbols, floor(symbols, negate(symbols, element)))


def truncate(symbols: Symbols, element: Any) -> Expr:
    """A float as an integer, towards zero."""
    if _whole(element):
        whole: Expr = element
        return whole
    value = ratio(element)
    if not symbols.at_most(0, value.numerator):
        raise UndecidedError
    return symbols.floordiv(value.numerator, value.denominator)


def equal(symbols: Symbols, left: Any, right: Any) -> bool:
    left, right = _scaled(left, right)
    if symbols.equal(left, right):
        return True
    if symbols.differ(left, right):
        return False
    raise UndecidedError


def less(symbols: Symbols, left: Any, right: Any) -> bool:
    left, right = _scaled(left, right)
    if symbols.at_most(left + 1, right):
        return True
    if symbols.at_most(right, left):
        return False
    raise UndecidedError


def _whole(*elements: Any) -> bool:
    return all(isinstance(element, (int, tirx.Expr)) for element in elements)


def _scaled(left: Any, right: Any) -> tuple[Expr, Expr]:
    """Both times the product of their denominators, which are positive."""
    a, b = ratio(left), ratio(right)
    return a.numerator * b.denominator, b.numerator * a.denominator


def _ratio(symbols: Symbols, numerator: Expr, denominator: Expr) -> Ratio:
    numerator, denominator = symbols.simplify(numerator), symbols.simplify(denominator)
    quotient = symbols.exact_quotient(numerator, denominator)
    return Ratio(numerator, denominator) if quotient is None else Ratio(quotient, 1)
