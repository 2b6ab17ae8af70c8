"""The number of multiply-adds that a manifest's formula gives for sizes of the dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

_OPERATIONS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b if b else 0,
    "%": lambda a, b: a % b if b else 0,
    "min": min,
    "max": max,
}


def value(work: Mapping[str, Any], sizes: Mapping[str, int]) -> int | None:
    """`work` is `{"text": ..., "terms": [[number, [factor, ...]], ...]}`, a factor a dimension's
    name or `[operator, factor, factor]`; None when it asks for what is not known."""
    try:
        total = 0
        for times, factors in work["terms"]:
            total += int(times) * math.prod(_factor(factor, sizes) for factor in factors)
        return total
    except (KeyError, TypeError, ValueError, RecursionError):
        return None


def _factor(factor: Any, sizes: Mapping[str, int]) -> int:
    if isinstance(factor, int):
        return factor
    if isinstance(factor, str):
        return sizes[factor]
    symbol, left, right = factor
    return _OPERATIONS[symbol](_factor(left, sizes), _factor(right, sizes))
