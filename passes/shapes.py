"""Arithmetic on dimensions: proofs of equality under the bounds of the symbolic ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tvm
from tvm import tirx

from graphc.ir import Dim, Expr

_HUGE = (1 << 31) - 1


def dims_of(values: Iterable[Any]) -> tuple[Expr, ...]:
    """Dimensions of a Relax shape: ints where they are known."""
    return tuple(int(value.value) if isinstance(value, tirx.IntImm) else value for value in values)


class Shapes:
    """Proves equalities between dimensions, knowing the bounds of the symbolic ones."""

    def __init__(self, dims: Sequence[Dim], variables: Iterable[Any]) -> None:
        self._analyzer = tvm.sym.Analyzer()
        self._proved: dict[tuple[str, str], bool] = {}
        known = {dim.name: dim for dim in dims}
        for variable in variables:
            dim = known.get(variable.name, Dim(variable.name, 0))
            upper = _HUGE if dim.upper is None else dim.upper
            least, extent = (
                tirx.IntImm("int64", number) for number in (dim.lower, upper - dim.lower + 1)
            )
            self._analyzer.bind(variable, tvm.ir.Range.from_min_extent(least, extent))

    def same(self, left: Expr, right: Expr) -> bool:
        """Whether two dimensions are provably equal."""
        if isinstance(left, int) and isinstance(right, int):
            return left == right
        if left is right:
            return True
        key = (str(left), str(right))
        if key not in self._proved:
            self._proved[key] = bool(self._analyzer.can_prove_equal(left, right))
        return self._proved[key]

    def same_all(self, left: Sequence[Expr], right: Sequence[Expr]) -> bool:
        """Whether two shapes are provably equal."""
        return len(left) == len(right) and all(map(self.same, left, right))

    def product(self, dims: Iterable[Expr]) -> Expr:
        """The product of dimensions, simplified."""
        result: Expr = 1
        for dim in dims:
            if isinstance(dim, int) and isinstance(result, int):
                result = result * dim
            elif isinstance(result, int) and result == 1:
                result = dim
            elif not (isinstance(dim, int) and dim == 1):
                result = self._analyzer.simplify(result * dim)
        return result

    def bounds(self, value: Expr) -> tuple[int | None, int | None]:
        """The least and the greatest value of a dimension, None where unknown."""
        if isinstance(value, int):
            return value, value
        found = self._analyzer.const_int_bound(value)
        low, high = int(found.min_value), int(found.max_value)
        return (low if low > -_HUGE else None), (high if high < _HUGE else None)
