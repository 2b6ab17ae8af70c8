"""An integer product over uint8 activations and int8 weights, whatever the zero points are.

    sum (a - za)(w - zw)  =  sum a' w'  -  za * sum w'  -  zw * (sum a' - K * za)

An int8 `a` is shifted up by 128 with its zero point, a uint8 `w` down by 128; zero points that w
can absorb within int8 vanish. It is exact in int32; the sums of w' are taken while compiling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tvm import relax

from graphc.passes.graph import Graph
from graphc.passes.node import Node

op = relax.op

Codes = Callable[[], npt.NDArray[np.int8]]


@dataclass(frozen=True)
class Weight:
    """An int8 matrix [depth, width] whose zero points [width] or () are still to be taken off.

    `codes` makes the matrix when it is read.
    """

    name: str
    codes: Codes
    depth: int
    width: int
    zero: npt.NDArray[np.int32]

    def sums(self, factor: int) -> npt.NDArray[np.int32]:
        """factor * sum of (code - zero) over the depth, for each column."""
        total: npt.NDArray[np.int32] = self.codes().sum(axis=0, dtype=np.int32)
        return (total - self.zero * np.int32(self.depth)) * np.int32(factor)


def weight_of(
    name: str, codes: npt.NDArray[np.generic], zero: npt.NDArray[np.generic] | None
) -> Weight:
    """A matrix of 8-bit integers as int8, its zero points absorbed where they fit."""
    wide = codes.astype(np.int32)
    offset = np.zeros((), np.int32) if zero is None else zero.astype(np.int32).reshape(-1)
    offset = offset.reshape(()) if offset.size == 1 else offset
    free = wide - offset
    if free.size == 0 or (free.min() >= -128 and free.max() <= 127):
        wide, offset = free, np.zeros((), np.int32)
    else:
        down = 128 if codes.dtype == np.uint8 else 0
        wide, offset = wide - down, offset - np.int32(down)
    small = wide.astype(np.int8)
    depth, width = codes.shape
    return Weight(name, lambda: small, depth, width, offset)


def integer_product(
    graph: Graph, a: Node, a_zero: int | relax.Expr | None, weight: Weight
) -> relax.Expr:
    """The int32 expression of sum (a - a_zero)(w - zero) for a [.., K] of 8 bits.

    `a_zero` is a number, or an int32 expression that broadcasts against the product.
    """
    left = a.var
    if a.dtype == "int8":
        wide = op.add(op.astype(left, "int32"), relax.const(128, "int32"))
        left = graph.emit(op.astype(wide, "uint8")).var
        a_zero = _plus(a_zero, 128)
    shape = (weight.depth, weight.width)
    codes = graph.param(f"{weight.name}.int8", weight.codes, shape, "int8")
    total: relax.Expr = op.matmul(left, codes.var, out_dtype="int32")
    if not isinstance(a_zero, int | None):
        total = op.subtract(total, op.multiply(a_zero, _sums(graph, weight, 1)))
    elif a_zero:
        total = op.subtract(total, _sums(graph, weight, a_zero))
    if weight.zero.any():
        rows = op.sum(op.astype(left, "int32"), axis=[-1], keepdims=True)
        zeros = graph.constant(weight.zero.reshape(-1), f"{weight.name}.zeros")
        total = op.subtract(total, op.multiply(rows, zeros.var))
    return total


def _plus(zero: int | relax.Expr | None, shift: int) -> int | relax.Expr:
    if isinstance(zero, int | None):
        return (zero or 0) + shift
    return op.add(zero, relax.const(shift, "int32"))


def _sums(graph: Graph, weight: Weight, factor: int) -> relax.Expr:
    name = f"{weight.name}.sums"
    return graph.param(name, lambda: weight.sums(factor), (weight.width,), "int32").var
