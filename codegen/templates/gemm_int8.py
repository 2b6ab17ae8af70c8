"""Packed integer GEMM: C[m, n] = epilogue(sum_k A[m, k] W[k, n]), A uint8, W int8, sums int32.

    W [K, N]  ---- pack, at compile time ---->  P [N / columns, K / 4, columns, 4]

    for (panel, row block) in parallel:
      acc[rows, columns] = 0                             int32, in vector registers
      for k4:                                            four k at once: codegen/instructions/dot.py
        acc += dot(A[rows, 4 k4 : 4 k4 + 4] (broadcast), P[panel, k4, :, :])
      C[rows, columns] = epilogue(acc)

The sums are exact. What belongs to zero points, scales, the next activation and requantisation is
pointwise and fused behind. Rows are cut into chunks, a chunk into full blocks and then blocks of
`tail_rows`, of which the last may overlap its neighbour; fewer rows than that are taken singly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import te, tirx
from tvm.ir import TensorLoad

from graphc.codegen import builder as tir
from graphc.codegen.instructions import dot
from graphc.codegen.instructions.instruction import Instruction, imported, store_vector, vector
from graphc.codegen.kernel import FusedKernel, Stage, is_param
from graphc.codegen.rewrite import walk
from graphc.codegen.templates.blocks import RegisterBlock
from graphc.codegen.templates.rows import Rows, output_of
from graphc.targets.target import Target

NAME = "gemm_int8"
VERSION = 1

CHUNK = 8
"""How many row blocks a panel is used for before the next one: their rows of A stay cached."""


class Decisions(RegisterBlock):
    """The register block: `rows` x (`vectors` vectors of `lanes` int32)."""

    template = f"{NAME}/{VERSION}"


def default_decisions(target: Target) -> Decisions:
    """The largest block whose accumulators, one row of the panel and a broadcast fit.

    Where bytes are widened first (no VNNI), the two halves of the panel and of the broadcast take
    registers too.
    """
    lanes, widened = dot.lanes(target), dot.is_widened(target)
    if target.vector_bits >= 512:
        return Decisions(8 if widened else 12, 2, lanes, 4)
    return Decisions(4, 2, lanes, 2) if widened else Decisions(6, 2, lanes, 3)


def packed_shape(depth: int, width: int, columns: int) -> tuple[int, int, int, int]:
    """The shape of a packed weight [depth, width]; depth is filled up to a multiple of 4."""
    return (-(-width // columns), -(-depth // dot.DEPTH), columns, dot.DEPTH)


def pack(weight: npt.NDArray[np.int8], columns: int) -> npt.NDArray[np.int8]:
    """int8 [K, N] -> [ceil(N / columns), ceil(K / 4), columns, 4], filled up with zeros."""
    depth, width = weight.shape
    panels, quads, _, _ = packed_shape(depth, width, columns)
    full = np.zeros((quads * dot.DEPTH, panels * columns), dtype=np.int8)
    full[:depth, :width] = weight
    cut = full.reshape(quads, dot.DEPTH, panels, columns)
    return np.ascontiguousarray(cut.transpose(2, 0, 3, 1))


def compute(width: int, columns: int) -> Any:
    """The TE computation over a packed weight that the layout pass emits; `NAME` annotates it.

    A [.., K] has a depth that is a multiple of 4.
    """

    def gemm_int8(a: te.Tensor, packed: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, a.shape[-1]), name="k")
        shape = [*a.shape[:-1], tir.const(width)]

        def element(*at: Any) -> Any:
            *lead, n = at
            weight = packed[n // columns, k // dot.DEPTH, n % columns, k % dot.DEPTH]
            return te.sum(a[(*lead, k)].astype("int32") * weight.astype("int32"), axis=k)

        return te.compute(shape, element, name=NAME, attrs={"graphc.template": NAME})

    return gemm_int8


def apply(kernel: FusedKernel, target: Target) -> tirx.PrimFunc | None:
    """Tiles a kernel whose root the layout pass packed; None when there is no such root."""
    root = kernel.root(NAME)
    if root is None:
        return None
    output = output_of(kernel, root)
    if output is None:
        return None
    sources = [
        n.source
        for n in walk(root.value)
        if isinstance(n, TensorLoad) and not n.source.same_as(root.buffer)
    ]
    if not all(is_param(kernel, source) for source in sources):
        return None
    a, packed = sources
    decisions = default_decisions(target)
    assert int(packed.shape[2]) == decisions.columns, (packed.shape, decisions)
    return _Gemm(kernel, root, output, (a, packed), decisions, dot.dot(target)).build()


class _Gemm:
    """Writes the loops of one kernel."""

    def __init__(
        self,
        kernel: FusedKernel,
        root: Stage,
        output: Stage,
        operands: Sequence[Any],
        decisions: Decisions,
        instruction: Instruction,
    ) -> None:
        self.kernel, self.root, self.output = kernel, root, output
        self.a, self.packed = operands
        self.decisions, self.dot = decisions, instruction
        self.quads = int(self.packed.shape[1])
        width = tir.static(root.spatial_extents[-1])
        assert width is not None, root.spatial_extents
        self.width = width

    def build(self) -> tirx.PrimFunc:
        d, params = self.decisions, self.kernel.params
        panels = -(-self.width // d.columns)
        work = [tir.const(2 * self.width * self.quads * dot.DEPTH), *self.root.spatial_extents[:-1]]
        with (
            tir.function(self.kernel.name, params, str(d), tir.product(work)) as build,
            imported([self.dot]),
        ):
            self.rows = Rows(self.kernel, self.root, self.output)
            count = self.rows.count
            # Four bytes at a time: the rows of both are multiples of four bytes.
            self.a_quads = tir.view_as(self.a, "int32", [count, tir.const(self.quads)])
            shape = [panels * self.quads * d.columns]
            self.panels = tir.view_as(self.packed, "int32", shape)
            with tir.when(count >= tir.const(d.tail_rows)):
                with tir.then():
                    self._chunks(panels)
                with tir.otherwise(), tir.parallel(count * tir.const(panels)) as task:
                    panel, row = tir.bind(task // count), tir.bind(task % count)
                    self._block(tir.local([1, d.columns], "int32"), row, panel, 1)
        return build.get()

    def _chunks(self, panels: int) -> None:
        """One task for each chunk of rows and panel, chunk by chunk.

        A thread then writes whole rows, which the next kernel's same thread reads from its own
        cache, and a panel stays in the first cache for a chunk.
        """
        d, count = self.decisions, self.rows.count
        chunk_rows = d.rows * CHUNK
        wanted = tir.let(_ceil(count, chunk_rows))
        size = tir.let(_ceil(_ceil(count, wanted), d.tail_rows) * tir.const(d.tail_rows))
        chunks = tir.let(_ceil(count, size))
        with tir.parallel(chunks * tir.const(panels)) as task:
            chunk, panel = tir.bind(task // tir.const(panels)), tir.bind(task % tir.const(panels))
            tile = tir.local([d.rows, d.columns], "int32")
            first = tir.bind(chunk * size)
            rows = tir.bind(tirx.min(size, count - first))
            full = tir.bind(rows // tir.const(d.rows))
            with tir.serial(full) as block:
                self._block(tile, first + block * tir.const(d.rows), panel, d.rows)
            after = tir.bind(full * tir.const(d.rows))
            with tir.serial(_ceil(rows - after, d.tail_rows)) as block:
                start = first + after + block * tir.const(d.tail_rows)
                start = tirx.min(start, count - tir.const(d.tail_rows))
                self._block(tile, start, panel, d.tail_rows)

    def _block(self, tile: Any, start: Any, panel: Any, rows: int) -> None:
        """acc[rows, columns] over all k, then the epilogue of each row.

        The epilogue is a loop over rows, written once: it reads a copy of the accumulators, since
        indexing them with a variable would push them out of the registers.
        """
        d = self.decisions
        start = tir.bind(start)
        first = panel * tir.const(d.columns)
        self.rows.prefetch(start, rows, first, d.columns)
        base = tir.bind(panel * tir.const(self.quads * d.columns))
        acc = [tir.local([d.columns], "int32") for _ in range(rows)]
        for i, at in tir.over_tile(rows, d.vectors, d.lanes):
            tir.store(acc[i], [at], tirx.const(0, "int32"))
        with tir.serial(self.quads) as k:
            # Rows outside: the other way round LLVM keeps a broadcast of every row, and spills.
            for i in range(rows):
                four = tir.load(self.a_quads, [start + tir.const(i), k])
                for v in range(d.vectors):
                    place = base + k * tir.const(d.columns) + tir.const(v * d.lanes)
                    weights = vector(self.panels, [place], d.lanes)
                    total = self.dot(
                        vector(acc[i], [tir.const(v * d.lanes)], d.lanes), four, weights
                    )
                    store_vector(acc[i], [tir.const(v * d.lanes)], d.lanes, total)
        for i, at in tir.over_tile(rows, d.vectors, d.lanes):
            tir.store(tile, [tir.const(i), at], tir.load(acc[i], [at]))
        whole = self.width // d.columns
        if self.width % d.columns == 0:
            self.rows.epilogue(tile, start, rows, first, d.columns, d.lanes)
            return
        with tir.when(panel < tir.const(whole)):
            with tir.then():
                self.rows.epilogue(tile, start, rows, first, d.columns, d.lanes)
            with tir.otherwise():
                self.rows.epilogue(tile, start, rows, first, self.width % d.columns, d.lanes)


def _ceil(value: Any, divisor: Any) -> Any:
    divisor = tir.const(divisor) if isinstance(divisor, int) else divisor
    return (value + divisor - tir.const(1)) // divisor
