"""Tiled matrix product: C[batch, m, n] = epilogue(sum_k A[batch, m, k] B[batch, k, n]).

    a work-group computes a tile of C; for each slice of k it puts a tile of A and one of B into
    shared memory, and each thread multiplies its register block out of them:

      shared A [depth, rows]  B [depth, columns]      acc [block, block] += A[k, i] * B[k, j]

A thread reads 2 * block values for block^2 multiply-adds; the tiles are read from memory
rows (columns) times less often than the products need them. Any m, n, k: outside the matrix the
tiles are filled with zeros and nothing is stored. What A and B are read through (transposes, casts,
dequantisation) and what follows (bias, activation, residual) is part of the same kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import TensorLoad

from graphc.codegen import builder as tir
from graphc.codegen.kernel import FusedKernel, Stage
from graphc.codegen.rewrite import walk
from graphc.codegen.templates.gpu import threads
from graphc.targets.target import Device, Target

NAME = "gpu matmul"
VERSION = 1


@dataclass(frozen=True)
class Decisions:
    """A tile of `side` x `side` threads, each with `block` x `block` results, `depth` of k."""

    side: int
    block: int
    depth: int

    @property
    def tile(self) -> int:
        return self.side * self.block

    @property
    def threads(self) -> int:
        return self.side * self.side

    def __str__(self) -> str:
        return f"{NAME}/{VERSION} {self.tile}x{self.tile}x{self.depth}"


def default_decisions(device: Device) -> Decisions:
    """16 x 16 threads with 4 x 4 results where they and 8 KiB of tiles fit, else half as many."""
    for decisions in (Decisions(16, 4, 16), Decisions(8, 4, 16)):
        shared = 2 * decisions.tile * decisions.depth * 4
        if decisions.threads <= device.max_threads and shared <= device.shared_bytes:
            return decisions
    return Decisions(4, 4, 8)


@dataclass(frozen=True)
class _Axes:
    """Positions of the root's spatial variables: in both operands, in A only, in B only."""

    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]


def apply(kernel: FusedKernel, target: Target) -> tirx.PrimFunc | None:
    """Tiles a kernel with one product of matrices in it and pointwise stages around it."""
    assert target.device is not None
    heavy = [s for s in kernel.stages if not s.is_pointwise]
    if len(heavy) != 1 or len(kernel.outputs) != 1:
        return None
    root, output = heavy[0], kernel.outputs[0]
    factors = _factors(root)
    if factors is None or str(root.buffer.dtype) not in ("float32", "float16"):
        return None
    axes = _axes(root, *factors)
    if axes is None or not _reads_own_element(kernel, root, output):
        return None
    return _Matmul(kernel, root, output, factors, axes, default_decisions(target.device)).build()


def _factors(root: Stage) -> tuple[Any, Any] | None:
    """x and y of acc + x * y over one reduced variable, where each is read from memory."""
    if root.init is None or len(root.reduce_vars) != 1 or not root.writes_identity:
        return None
    value = root.value
    if not isinstance(value, tirx.Add) or not isinstance(value.b, tirx.Mul):
        return None
    accumulator = value.a
    if not (isinstance(accumulator, TensorLoad) and accumulator.source.same_as(root.buffer)):
        return None
    return value.b.a, value.b.b


def _uses(expr: Any, variable: Any) -> bool:
    return any(node.same_as(variable) for node in walk(expr))


def _axes(root: Stage, left: Any, right: Any) -> _Axes | None:
    batch: list[int] = []
    rows: list[int] = []
    columns: list[int] = []
    for position, variable in enumerate(root.spatial_vars):
        in_left, in_right = _uses(left, variable), _uses(right, variable)
        place = batch if in_left and in_right else rows if in_left else columns
        place.append(position)
    k = root.reduce_vars[0]
    if not columns or not (_uses(left, k) and _uses(right, k)):
        return None
    return _Axes(tuple(batch), tuple(rows), tuple(columns))


def _reads_own_element(kernel: FusedKernel, root: Stage, output: Stage) -> bool:
    """The epilogue wants, for each of its elements, the product at the same indices."""
    if output is root:
        return True
    own, seen = list(output.spatial_vars), []

    def note(buffer: Any, at: list[Any]) -> Any:
        if buffer.same_as(root.buffer):
            seen.append(at)
        return tir.load(buffer, at)

    kernel.element(output, own, note)
    return bool(seen) and all(
        len(at) == len(own) and all(i.same_as(v) for i, v in zip(at, own, strict=True))
        for at in seen
    )


class _Matmul:
    """Writes the loops of one kernel."""

    def __init__(
        self,
        kernel: FusedKernel,
        root: Stage,
        output: Stage,
        factors: tuple[Any, Any],
        axes: _Axes,
        decisions: Decisions,
    ) -> None:
        self.kernel, self.root, self.output = kernel, root, output
        self.factors, self.axes, self.decisions = factors, axes, decisions
        extents = root.spatial_extents
        self.batch = [extents[p] for p in axes.batch]
        self.rows = [extents[p] for p in axes.rows]
        self.columns = [extents[p] for p in axes.columns]
        self.m, self.n = tir.product(self.rows), tir.product(self.columns)
        self.k = root.reduce_extents[0]
        self.dtype = str(root.buffer.dtype)

    def build(self) -> tirx.PrimFunc:
        d = self.decisions
        tile = tir.const(d.tile)
        across = (self.n + tile - tir.const(1)) // tile
        down = (self.m + tile - tir.const(1)) // tile
        with (
            tir.function(self.kernel.name, self.kernel.params, str(d)) as build,
            threads.group(tir.product(self.batch), "z") as batch,
            threads.group(down, "y") as row_tile,
            threads.group(across, "x") as column_tile,
            threads.thread(d.side, "y") as y,
            threads.thread(d.side, "x") as x,
        ):
            self._tile(
                threads.unflatten(batch, self.batch), row_tile * tile, column_tile * tile, y, x
            )
        return build.get()

    def _tile(self, batch: list[Any], first_row: Any, first_column: Any, y: Any, x: Any) -> None:
        d = self.decisions
        a, b = threads.shared([d.depth, d.tile]), threads.shared([d.depth, d.tile])
        acc = threads.private([d.block, d.block])
        for i in range(d.block):
            for j in range(d.block):
                tir.store(acc, [tir.const(i), tir.const(j)], tir.f32(0.0))
        slices = (self.k + tir.const(d.depth - 1)) // tir.const(d.depth)
        with tir.serial(slices) as part:
            start = part * tir.const(d.depth)
            self._fetch(a, 0, batch, first_row, start, y, x)
            self._fetch(b, 1, batch, first_column, start, y, x)
            with tir.serial(d.depth) as k:
                self._multiply(acc, a, b, k, y, x)
        for i in range(d.block):
            for j in range(d.block):
                row = first_row + self._own(y, i)
                column = first_column + self._own(x, j)
                with tir.when(tirx.all(row < self.m, column < self.n)), tir.then():
                    value = tir.load(acc, [tir.const(i), tir.const(j)])
                    self._store(batch, row, column, value)

    def _own(self, lane: Any, number: int) -> Any:
        """Neighbouring threads own neighbouring results: no bank of shared memory is read twice."""
        return lane + tir.const(number * self.decisions.side)

    def _multiply(self, acc: Any, a: Any, b: Any, k: Any, y: Any, x: Any) -> None:
        d = self.decisions
        left, right = threads.private([d.block]), threads.private([d.block])
        for i in range(d.block):
            tir.store(left, [tir.const(i)], tir.load(a, [k, self._own(y, i)]))
            tir.store(right, [tir.const(i)], tir.load(b, [k, self._own(x, i)]))
        for i in range(d.block):
            for j in range(d.block):
                at = [tir.const(i), tir.const(j)]
                term = tir.load(left, [tir.const(i)]) * tir.load(right, [tir.const(j)])
                tir.store(acc, at, tir.load(acc, at) + term)

    def _fetch(
        self, tile: Any, side: int, batch: list[Any], first: Any, start: Any, y: Any, x: Any
    ) -> None:
        """The work-group copies a slice; threads in order of what lies together in memory."""
        d = self.decisions
        limit = self.n if side else self.m
        along_k = self._k_is_last(side)
        lane = y * tir.const(d.side) + x
        for number in range(d.depth * d.tile // d.threads):
            index = lane + tir.const(number * d.threads)
            if along_k:
                k, at = index % tir.const(d.depth), index // tir.const(d.depth)
            else:
                k, at = index // tir.const(d.tile), index % tir.const(d.tile)
            place, depth = first + at, start + k
            inside = tirx.all(place < limit, depth < self.k)
            value = tirx.if_then_else(inside, self._factor(side, batch, place, depth), tir.f32(0.0))
            tir.store(tile, [k, at], value)

    def _k_is_last(self, side: int) -> bool:
        """The operand is contiguous along k."""
        k = self.root.reduce_vars[0]
        loads = [n for n in walk(self.factors[side]) if isinstance(n, TensorLoad) and n.indices]
        return bool(loads) and _uses(loads[0].indices[-1], k)

    def _factor(self, side: int, batch: list[Any], place: Any, depth: Any) -> Any:
        """One element of A (side 0) or B (side 1), its producers inlined, as float32."""
        places = dict(zip((self.root.spatial_vars[p] for p in self.axes.batch), batch, strict=True))
        positions, extents = (
            (self.axes.columns, self.columns) if side else (self.axes.rows, self.rows)
        )
        indices = threads.unflatten(place, extents)
        places |= dict(zip((self.root.spatial_vars[p] for p in positions), indices, strict=True))
        places[self.root.reduce_vars[0]] = depth
        value = self.kernel.inlined(self.factors[side], places, tir.load)
        return value if str(value.ty) == "float32" else value.astype("float32")

    def _store(self, batch: list[Any], row: Any, column: Any, value: Any) -> None:
        at: list[Any] = [None] * len(self.root.spatial_vars)
        groups = (
            (self.axes.batch, batch),
            (self.axes.rows, threads.unflatten(row, self.rows)),
            (self.axes.columns, threads.unflatten(column, self.columns)),
        )
        for positions, indices in groups:
            for position, index in zip(positions, indices, strict=True):
                at[position] = index
        value = value if self.dtype == "float32" else value.astype(self.dtype)

        def load(buffer: Any, where: Sequence[Any]) -> Any:
            return value if buffer.same_as(self.root.buffer) else tir.load(buffer, where)

        result = value if self.output is self.root else self.kernel.element(self.output, at, load)
        tir.store(self.output.buffer, at, result)
