"""Packed GEMM with a register block: C[m, n] = epilogue(sum_k A[m, k] W[k, n]).

    W [K, N]  ---- pack, at compile time ---->  P [N / columns, K, columns]

    for (panel, row block) in parallel:                 one block of C at a time
      acc[rows, columns] = 0                            lives in vector registers
      for k:                                            one panel row is `vectors` loads,
        acc += A[rows, k] (broadcast) * P[panel, k, :]  each used `rows` times
      C[rows, columns] = epilogue(acc)

Any M, without a slow path: blocks of `rows` rows, then blocks of `tail_rows` rows, of which the
last overlaps its neighbour (it computes the same values again); below `tail_rows` single rows.
Arithmetic intensity of a block is rows * columns / (2 * (rows + columns)) FLOP per byte of cache
traffic; `rows * vectors` accumulators must hide the latency of the FMA and fit the registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.ir import TensorLoad

from graphc.codegen import builder as tir
from graphc.codegen.kernel import FusedKernel, Stage, is_param
from graphc.codegen.rewrite import rewrite, walk
from graphc.targets.target import Target

NAME = "gemm"
VERSION = 1


@dataclass(frozen=True)
class Decisions:
    """The register block: `rows` x (`vectors` vectors of `lanes` floats)."""

    rows: int
    vectors: int
    lanes: int
    tail_rows: int

    def __post_init__(self) -> None:
        assert self.rows >= self.tail_rows >= 1 and self.vectors >= 1 and self.lanes >= 1, self

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    def __str__(self) -> str:
        return f"{NAME}/{VERSION} {self.rows}x{self.columns}"


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
            return te.sum(a[(*lead, k)] * packed[n // columns, k, n % columns], axis=k)

        return te.compute(shape, element, name=NAME, attrs={"graphc.template": NAME})

    return gemm


def apply(kernel: FusedKernel, target: Target) -> tirx.PrimFunc | None:
    """Tiles a kernel whose root the layout pass packed; None when there is no such root."""
    root = kernel.root(NAME)
    if root is None or len(kernel.outputs) != 1:
        return None
    output = kernel.outputs[0]
    rest = [s for s in kernel.stages if s is not root]
    if not all(s.is_pointwise for s in rest) or (output is not root and not output.is_pointwise):
        return None
    loads = [
        n
        for n in walk(root.value)
        if isinstance(n, TensorLoad) and not n.source.same_as(root.buffer)
    ]
    a, packed = loads[0].source, loads[1].source
    if not (is_param(kernel, a) and is_param(kernel, packed)):
        return None
    decisions = default_decisions(target)
    assert int(packed.shape[2]) == decisions.columns, (packed.shape, decisions)
    return _Gemm(kernel, root, output, a, packed, decisions).build()


class _Gemm:
    """Writes the loops; one object per kernel, so that the pieces share the views."""

    def __init__(
        self,
        kernel: FusedKernel,
        root: Stage,
        output: Stage,
        a: Any,
        packed: Any,
        decisions: Decisions,
    ) -> None:
        self.kernel, self.root, self.output = kernel, root, output
        self.a, self.packed, self.decisions = a, packed, decisions
        self.lead = root.spatial_extents[:-1]  # the dimensions that make up the rows
        self.rows = tir.product(self.lead)
        self.depth = root.reduce_extents[0]
        width = tir.static(root.spatial_extents[-1])
        assert width is not None, root.spatial_extents
        self.width = width
        self.lead_vars = [tirx.Var(f"lead{i}", "int64") for i in range(len(self.lead))]
        self.views: dict[Any, Any] = {}

    def build(self) -> tirx.PrimFunc:
        d = self.decisions
        panels = -(-self.width // d.columns)
        params = self.kernel.params
        flops = tir.const(2 * self.width) * self.rows * self.depth
        with tir.function(self.kernel.name, params, str(d), flops) as build:
            for buffer in params:
                if self._has_rows(buffer) or buffer.same_as(self.a):
                    self.views[buffer] = tir.view(buffer, [self.rows, buffer.shape[-1]])
            full = tir.let(self.rows // tir.const(d.rows))
            left = self.rows - full * tir.const(d.rows)
            tail = tir.let((left + tir.const(d.tail_rows - 1)) // tir.const(d.tail_rows))
            blocks = tir.let(full + tail)
            with tir.when(self.rows >= tir.const(d.tail_rows)):
                with tir.then(), tir.parallel(blocks * tir.const(panels)) as task:
                    panel, block = tir.bind(task // blocks), tir.bind(task % blocks)
                    with tir.when(block < full):
                        with tir.then():
                            self._block(block * tir.const(d.rows), panel, d.rows)
                        with tir.otherwise():
                            after = full * tir.const(d.rows)
                            start = after + (block - full) * tir.const(d.tail_rows)
                            last = self.rows - tir.const(d.tail_rows)
                            self._block(tirx.min(start, last), panel, d.tail_rows)
                with tir.otherwise(), tir.parallel(self.rows * tir.const(panels)) as task:
                    panel, row = tir.bind(task // self.rows), tir.bind(task % self.rows)
                    self._block(row, panel, 1)
        return build.get()

    def _block(self, start: Any, panel: Any, rows: int) -> None:
        """acc[rows, columns] over all k, then the epilogue of each row."""
        d = self.decisions
        start = tir.bind(start)
        a, columns = self.views[self.a], self._columns(rows)
        acc = tir.tile(rows, d.columns)
        for i, at in columns():
            tir.store(acc[i], [at], tir.f32(0.0))
        with tir.serial(self.depth) as k:
            for i, at in columns():
                term = tir.load(a, [start + tir.const(i), k]) * tir.load(
                    self.packed, [panel, k, at]
                )
                tir.store(acc[i], [at], tir.load(acc[i], [at]) + term)
        # The epilogue is a loop over rows, written once: it reads a copy of the accumulators, since
        # indexing them with a variable would push them out of the registers.
        tile = tir.local([rows, d.columns])
        for i, at in columns():
            tir.store(tile, [tir.const(i), at], tir.load(acc[i], [at]))
        whole = self.width // d.columns
        if self.width % d.columns == 0:
            self._epilogue(tile, start, panel, rows, d.columns)
            return
        with tir.when(panel < tir.const(whole)):
            with tir.then():
                self._epilogue(tile, start, panel, rows, d.columns)
            with tir.otherwise():
                self._epilogue(tile, start, panel, rows, self.width % d.columns)

    def _columns(self, rows: int) -> Callable[[], Iterator[tuple[int, Any]]]:
        """A fresh walk over the register block: (row, column within the panel)."""
        d = self.decisions
        return lambda: tir.over_tile(rows, d.vectors, d.lanes)

    def _epilogue(self, tile: Any, start: Any, panel: Any, rows: int, columns: int) -> None:
        first = panel * tir.const(self.decisions.columns)

        def write(i: Any, offset: Any, width: int) -> None:
            row = start + i

            def load(buffer: Any, at: Sequence[Any]) -> Any:
                if buffer.same_as(self.root.buffer):
                    return tir.load(tile, [i, at[-1] - first])
                return self._load(buffer, at, row)

            self.kernel.store_vector(
                self.output,
                lambda lane: [*self.lead_vars, first + offset + lane],
                width,
                load,
                lambda at, value: self._store(at, value, row),
            )

        with tir.serial(rows) as i:
            tir.lanes_over(columns, self.decisions.lanes, lambda at, w: write(i, at, w))

    def _has_rows(self, buffer: Any) -> bool:
        """The buffer's leading dimensions are the GEMM's rows: it can be seen as [M, last]."""
        shape = getattr(buffer.ty, "shape", None)
        if shape is None or len(shape) != len(self.lead) + 1:
            return False
        pairs = zip(shape[:-1], self.lead, strict=True)
        return all(tir.static(tir.simplify(a - b)) == 0 for a, b in pairs)

    def _load(self, buffer: Any, at: Sequence[Any], row: Any) -> Any:
        if buffer in self.views and self._is_row(at):
            return tir.load(self.views[buffer], [row, at[-1]])
        return tir.load(buffer, [self._place(i, row) for i in at])

    def _store(self, at: Sequence[Any], value: Any, row: Any) -> None:
        assert self._is_row(at), at
        value = rewrite(value, lambda node: self._lead_value(node, row))
        tir.store(self.views[self.output.buffer], [row, at[-1]], value)

    def _is_row(self, at: Sequence[Any]) -> bool:
        lead = at[:-1]
        return len(lead) == len(self.lead_vars) and all(
            i.same_as(v) for i, v in zip(lead, self.lead_vars, strict=True)
        )

    def _place(self, index: Any, row: Any) -> Any:
        return rewrite(index, lambda node: self._lead_value(node, row))

    def _lead_value(self, node: Any, row: Any) -> Any | None:
        """The value of one leading index in terms of the row: row // inner % extent."""
        for position, variable in enumerate(self.lead_vars):
            if variable.same_as(node):
                inner = tir.product(self.lead[position + 1 :])
                index = row if tir.static(inner) == 1 else row // inner
                return index if position == 0 else index % self.lead[position]
        return None
