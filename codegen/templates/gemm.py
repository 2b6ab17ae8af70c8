"""Packed GEMM with a register block: C[m, n] = epilogue(sum_k A[m, k] W[k, n]).

    W [K, N]  ---- pack, at compile time ---->  P [N / columns, K, columns]

    for (chunk, panel, row block) in parallel:          one block of C at a time (blocks.py)
      acc[rows, columns] = 0                            lives in vector registers
      for k:                                            one panel row is `vectors` loads,
        acc += A[rows, k] (broadcast) * P[panel, k, :]  each used `rows` times
      C[rows, columns] = epilogue(acc)

While the first blocks of a panel are computed, the next panel is fetched into the second cache:
with few rows a product takes as long as its weights take to come from memory, and computing and
fetching would otherwise alternate.
A weight of 8 bits is widened in registers, once for all rows of a block; its scale is pointwise.

Arithmetic intensity of a block is rows * columns / (2 * (rows + columns)) FLOP per byte of cache
traffic; `rows * vectors` accumulators must hide the latency of the FMA and fit the registers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.ir import TensorLoad

from graphc.codegen import builder as tir
from graphc.codegen.kernel import FusedKernel, Stage, is_param
from graphc.codegen.rewrite import walk
from graphc.codegen.templates.blocks import (
    Cover,
    RegisterBlock,
    cover,
    each_block,
    next_panel,
)
from graphc.codegen.templates.rows import Rows, output_of
from graphc.targets.target import Target

NAME = "gemm"
VERSION = 2


class Decisions(RegisterBlock):
    """The register block: `rows` x (`vectors` vectors of `lanes` floats)."""

    template = f"{NAME}/{VERSION}"


def default_decisions(target: Target) -> Decisions:
    """The largest block whose accumulators, one row of the panel and a broadcast fit.

    AVX-512 has 32 registers and takes the broadcast as an operand from memory. NEON has as many,
    four times as narrow: three vectors make up for it. Where there are 16 the broadcast costs one.
    """
    lanes = target.lanes(32)
    if target.vector_registers < 32:
        return Decisions(rows=6, vectors=2, lanes=lanes, tail_rows=3)
    if lanes < 16:
        return Decisions(rows=8, vectors=3, lanes=lanes, tail_rows=4)
    return Decisions(rows=12, vectors=2, lanes=lanes, tail_rows=4)


def packed_shape(depth: int, width: int, columns: int) -> tuple[int, int, int]:
    """The shape of a packed weight [depth, width]."""
    return (-(-width // columns), depth, columns)


def pack(weight: np.ndarray, columns: int) -> np.ndarray:
    """[K, N] -> [ceil(N / columns), K, columns], the last panel filled up with zeros."""
    shape = packed_shape(weight.shape[0], weight.shape[1], columns)
    packed = np.zeros(shape, dtype=weight.dtype)
    for panel in range(shape[0]):
        part = weight[:, panel * columns : (panel + 1) * columns]
        packed[panel, :, : part.shape[1]] = part
    return packed


def compute(width: int, columns: int) -> Any:
    """The TE computation over a packed weight that the layout pass emits; `NAME` annotates it."""

    def gemm(a: te.Tensor, packed: te.Tensor) -> te.Tensor:
        depth = a.shape[-1]
        k = te.reduce_axis((0, depth), name="k")
        shape = [*a.shape[:-1], tir.const(width)]

        def element(*at: Any) -> Any:
            *lead, n = at
            weight = packed[n // columns, k, n % columns]
            return te.sum(a[(*lead, k)] * weight.astype("float32"), axis=k)

        return te.compute(shape, element, name=NAME, attrs={"graphc.template": NAME})

    return gemm


def apply(kernel: FusedKernel, target: Target) -> tirx.PrimFunc | None:
    """Tiles a kernel whose root the layout pass packed; None when there is no such root."""
    root = kernel.root(NAME)
    if root is None:
        return None
    output = output_of(kernel, root)
    if output is None:
        return None
    a, packed = (
        n.source
        for n in walk(root.value)
        if isinstance(n, TensorLoad) and not n.source.same_as(root.buffer)
    )
    if not (is_param(kernel, a) and is_param(kernel, packed)):
        return None
    decisions = default_decisions(target)
    assert int(packed.shape[2]) == decisions.columns, (packed.shape, decisions)
    depth = int(packed.shape[1])
    shape = cover(target, decisions.rows, decisions.tail_rows, 4 * depth)
    return _Gemm(kernel, root, output, (a, packed), decisions, shape).build()


class _Gemm:
    """Writes the loops of one kernel."""

    def __init__(
        self,
        kernel: FusedKernel,
        root: Stage,
        output: Stage,
        operands: tuple[Any, Any],
        decisions: Decisions,
        shape: Cover,
    ) -> None:
        self.kernel, self.root, self.output = kernel, root, output
        self.a, self.packed = operands
        self.decisions, self.shape = decisions, shape
        self.depth = int(self.packed.shape[1])
        width = tir.static(root.spatial_extents[-1])
        assert width is not None, root.spatial_extents
        self.width = width

    def build(self) -> tirx.PrimFunc:
        d, params = self.decisions, self.kernel.params
        panels = int(self.packed.shape[0])
        flops = tir.product(
            [tir.const(2 * self.width * self.depth), *self.root.spatial_extents[:-1]]
        )
        with tir.function(self.kernel.name, params, str(d), flops) as build:
            self.rows = Rows(self.kernel, self.root, self.output)
            self.a_rows = tir.view(self.a, [self.rows.count, tir.const(self.depth)])
            self.lines = tir.view(self.packed, [tir.product(self.packed.shape)])
            each_block(self.rows.count, panels, self.shape, self._block)
        return build.get()

    def _block(self, start: Any, panel: Any, rows: int, step: Any) -> None:
        """acc[rows, columns] over all k, then the epilogue of each row."""
        d = self.decisions
        acc = tir.tile(rows, d.columns)
        for i, at in tir.over_tile(rows, d.vectors, d.lanes):
            tir.store(acc[i], [at], tir.f32(0.0))
        self.rows.prefetch(start, rows, panel * tir.const(d.columns), d.columns)
        size = self.depth * d.columns
        ahead = next_panel(panel * tir.const(size), size, self.depth, d.columns, step)
        with tir.serial(self.depth) as k:
            tir.prefetch(self.lines, [ahead + k * tir.const(tir.LINE_FLOATS)], level=2)
            for i, at in tir.over_tile(rows, d.vectors, d.lanes):
                data = tir.load(self.a_rows, [start + tir.const(i), k])
                term = data * tir.load(self.packed, [panel, k, at]).astype("float32")
                tir.store(acc[i], [at], tir.load(acc[i], [at]) + term)
        self.rows.store(acc, start, panel, d.columns, d.lanes)
