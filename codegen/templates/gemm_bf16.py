"""Packed bfloat16 GEMM, summed in float32: C[m, n] = epilogue(sum_k A[m, k] W[k, n]).

    W [K, N]  ---- pack, at compile time ---->  P [N / columns, K / 2, columns]   int32: two
                                                bfloat16 of one column, the first in the low half
    for (chunk, panel, row block) in parallel:                            (blocks.py)
      acc[rows, columns] = 0                             float32, in vector registers
      for k2:                                            two k at once: instructions/pairs.py
        acc += pairs(A[rows, 2 k2 : 2 k2 + 2] (broadcast), P[panel, k2, :])
      C[rows, columns] = epilogue(acc)

A is bfloat16 in memory: whoever wrote it has rounded it. Where the target has no bfloat16
arithmetic the products are float32 ones; the weights are still half as large.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import te, tirx
from tvm.ir import TensorLoad

from graphc.codegen import builder as tir
from graphc.codegen.instructions import pairs
from graphc.codegen.instructions.instruction import Instruction, imported, store_vector, vector
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

NAME = "gemm_bf16"
VERSION = 1


class Decisions(RegisterBlock):
    """The register block: `rows` x (`vectors` vectors of `lanes` floats)."""

    template = f"{NAME}/{VERSION}"


def default_decisions(target: Target) -> Decisions:
    """The largest block whose accumulators, one row of the panel and a broadcast fit.

    Where halves are shifted into place, both halves of the panel and of the broadcast take
    registers.
    """
    lanes, native = pairs.lanes(target), pairs.is_native(target)
    if target.vector_registers >= 32:
        return Decisions(12 if native else 8, 2, lanes, 4)
    return Decisions(4, 2, lanes, 2)


def packed_shape(depth: int, width: int, columns: int) -> tuple[int, int, int]:
    """The shape of a packed weight [depth, width]; depth is filled up to a multiple of 2."""
    return (-(-width // columns), -(-depth // pairs.DEPTH), columns)


def pack(weight: npt.NDArray[Any], columns: int) -> npt.NDArray[np.int32]:
    """bfloat16 [K, N] -> int32 [ceil(N / columns), ceil(K / 2), columns], filled up with zeros."""
    depth, width = weight.shape
    panels, halves, _ = packed_shape(depth, width, columns)
    full = np.zeros((halves * pairs.DEPTH, panels * columns), dtype=np.uint16)
    full[:depth, :width] = weight.view(np.uint16)
    cut = full.reshape(halves, pairs.DEPTH, panels, columns)
    return np.ascontiguousarray(cut.transpose(2, 0, 3, 1)).view(np.int32)[..., 0]


def compute(width: int, columns: int) -> Any:
    """The TE computation over a packed weight that the layout pass emits; `NAME` annotates it.

    A [.., K] has an even depth.
    """

    def gemm_bf16(a: te.Tensor, packed: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, a.shape[-1]), name="k")
        shape = [*a.shape[:-1], tir.const(width)]
        half = tirx.const(16, "int32")

        def element(*at: Any) -> Any:
            *lead, n = at
            word = packed[n // columns, k // pairs.DEPTH, n % columns]
            upper = (word >> (half * (k % pairs.DEPTH).astype("int32"))) << half
            weight = tirx.reinterpret("float32", upper)
            return te.sum(a[(*lead, k)].astype("float32") * weight, axis=k)

        return te.compute(shape, element, name=NAME, attrs={"graphc.template": NAME})

    return gemm_bf16


def apply(kernel: FusedKernel, target: Target) -> tirx.PrimFunc | None:
    """Tiles a kernel whose root the layout pass packed; None when there is no such root."""
    root = kernel.root(NAME)
    output = None if root is None else output_of(kernel, root)
    if root is None or output is None:
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
    shape = cover(target, decisions.rows, decisions.tail_rows, 4 * int(packed.shape[1]))
    return _Gemm(kernel, root, output, (a, packed), decisions, shape, pairs.pairs(target)).build()


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
        instruction: Instruction,
    ) -> None:
        self.kernel, self.root, self.output = kernel, root, output
        self.a, self.packed = operands
        self.decisions, self.shape, self.pairs = decisions, shape, instruction
        self.halves = int(self.packed.shape[1])
        width = tir.static(root.spatial_extents[-1])
        assert width is not None, root.spatial_extents
        self.width = width

    def build(self) -> tirx.PrimFunc:
        d, params = self.decisions, self.kernel.params
        panels = int(self.packed.shape[0])
        operations = tir.const(2 * self.width * self.halves * pairs.DEPTH)
        flops = tir.product([operations, *self.root.spatial_extents[:-1]])
        with tir.function(self.kernel.name, params, str(d), flops) as build, imported([self.pairs]):
            self.rows = Rows(self.kernel, self.root, self.output)
            shape = [self.rows.count, tir.const(self.halves)]
            self.a_pairs = tir.view_as(self.a, "int32", shape)
            self.panels = tir.view(self.packed, [panels * self.halves * d.columns])
            each_block(self.rows.count, panels, self.shape, self._block)
        return build.get()

    def _block(self, start: Any, panel: Any, rows: int, step: Any) -> None:
        """acc[rows, columns] over all k, then the epilogue of each row."""
        d = self.decisions
        size = self.halves * d.columns
        base = tir.bind(panel * tir.const(size))
        self.rows.prefetch(start, rows, panel * tir.const(d.columns), d.columns)
        ahead = next_panel(base, size, self.halves, d.columns, step)
        acc = tir.tile(rows, d.columns)
        for i, at in tir.over_tile(rows, d.vectors, d.lanes):
            tir.store(acc[i], [at], tir.f32(0.0))
        with tir.serial(self.halves) as k:
            tir.prefetch(self.panels, [ahead + k * tir.const(tir.LINE_FLOATS)], level=2)
            # Row by row: a broadcast is used up before the next one takes its register.
            for i in range(rows):
                two = tir.load(self.a_pairs, [start + tir.const(i), k])
                for v in range(d.vectors):
                    at = [tir.const(v * d.lanes)]
                    place = base + k * tir.const(d.columns) + at[0]
                    weights = vector(self.panels, [place], d.lanes)
                    total = self.pairs(vector(acc[i], at, d.lanes), two, weights)
                    store_vector(acc[i], at, d.lanes, total)
        self.rows.store(acc, start, panel, d.columns, d.lanes)
