"""The fallback: every stage as plain loops, vectors along its last dimension, threads outside.

    pointwise    parallel over the outer dimensions, vectors along the last one
    reduction    last index spatial:  a row of vector accumulators, one pass over the reduction
                 last index reduced:  partial sums in vector lanes, joined at the end
                 otherwise:           one scalar accumulator

Stages that are pointwise are inlined into their readers; only reductions and outputs are stored.
It takes any fused function that consists of plain block nests, so it ends the list of templates.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from tvm import tirx
from tvm.ir import TensorLoad

from graphc.codegen import builder as tir
from graphc.codegen.kernel import FusedKernel, Stage, is_param
from graphc.codegen.rewrite import rewrite, walk
from graphc.targets.target import Target

NAME = "loops"
VERSION = 1

# Vector accumulators that hide the latency of an addition.
ACCUMULATORS = 4


def apply(kernel: FusedKernel, target: Target) -> tirx.PrimFunc | None:
    """Loops for every stage that has to be stored; takes every kernel."""
    return _Loops(kernel, target.lanes(32)).build()


class _Loops:
    def __init__(self, kernel: FusedKernel, lanes: int) -> None:
        self.kernel, self.lanes = kernel, lanes
        self.stored: dict[Any, Any] = {p: p for p in kernel.params}

    def build(self) -> tirx.PrimFunc:
        with tir.function(self.kernel.name, self.kernel.params, f"{NAME}/{VERSION}") as build:
            for stage in self.kernel.stages:
                if stage.is_pointwise and not is_param(self.kernel, stage.buffer):
                    continue
                if stage.buffer not in self.stored:
                    shape = list(stage.buffer.shape)
                    self.stored[stage.buffer] = tir.workspace(shape, stage.buffer.dtype)
                self._stage(stage)
        return build.get()

    def _load(self, buffer: Any, at: Sequence[Any]) -> Any:
        return tir.load(self.stored[buffer], at)

    def _stage(self, stage: Stage) -> None:
        extents = list(stage.spatial_extents)
        if stage.init is not None:
            work = tir.product([*extents, *stage.reduce_extents])
            emit = self._reduction
        else:
            work = tir.product(extents)
            emit = self._pointwise if stage.is_pointwise else self._scatter
        count = tir.static(work)
        if count is not None:
            emit(stage, count >= tir.SERIAL_ELEMENTS)
            return
        with tir.when(work >= tir.const(tir.SERIAL_ELEMENTS)):
            with tir.then():
                emit(stage, True)
            with tir.otherwise():
                emit(stage, False)

    # Stages without a reduction

    def _pointwise(self, stage: Stage, threads: bool) -> None:
        *outer, last = stage.spatial_extents or (tir.const(1),)
        with self._outer(outer, threads) as at:

            def write(start: Any, width: int) -> None:
                if not stage.spatial_extents:
                    self._write_vector(stage, lambda _: [], width)
                else:
                    self._write_vector(stage, lambda lane: [*at, start + lane], width)

            tir.row(last, self._vector_width(stage), write)

    def _write_vector(self, stage: Stage, indices: Any, width: int) -> None:
        self.kernel.store_vector(
            stage,
            indices,
            width,
            self._load,
            lambda at, value: tir.store(self.stored[stage.buffer], at, value),
        )

    def _scatter(self, stage: Stage, threads: bool) -> None:
        """Writes at computed places: one element at a time, in order."""
        del threads
        with self._outer(list(stage.spatial_extents), False) as at:
            self._store_scalar(stage, at, {})

    def _store_scalar(self, stage: Stage, at: Sequence[Any], more: dict[Any, Any]) -> None:
        places = {**dict(zip(stage.spatial_vars, at, strict=True)), **more}
        indices = [rewrite(i, places.get) for i in stage.indices]
        value = self._value(stage, at, more)
        tir.store(self.stored[stage.buffer], indices, value)

    # Reductions

    def _reduction(self, stage: Stage, threads: bool) -> None:
        if not stage.writes_identity:
            self._scalar_reduction(stage, threads)
        elif self._last_index_is(stage, stage.spatial_vars[-1:]):
            self._row_reduction(stage, threads)
        elif self._last_index_is(stage, stage.reduce_vars[-1:]) and _combiner(stage) is not None:
            self._lane_reduction(stage, threads)
        else:
            self._scalar_reduction(stage, threads)

    def _row_reduction(self, stage: Stage, threads: bool) -> None:
        """Accumulators along the last spatial dimension: acc[columns] += f(.., column)."""
        *outer, last = stage.spatial_extents
        width = self._vector_width(stage)
        with self._outer(outer, threads) as at:
            tile = width * ACCUMULATORS

            def block(start: Any, columns: int) -> None:
                acc = tir.local([columns], stage.buffer.dtype)
                tir.fill(acc, columns, stage.init)
                with self._reduce_loops(stage) as reduced, tir.vector(columns) as lane:
                    value = self._accumulated(stage, [*at, start + lane], reduced, acc, lane)
                    tir.store(acc, [lane], value)
                with tir.vector(columns) as lane:
                    target = [*at, start + lane]
                    tir.store(self.stored[stage.buffer], target, tir.load(acc, [lane]))

            tir.row(last, tile, block)

    def _lane_reduction(self, stage: Stage, threads: bool) -> None:
        """Partial results in vector lanes along the last reduced dimension."""
        combine = _combiner(stage)
        assert combine is not None
        width = self._vector_width(stage)
        with self._outer(list(stage.spatial_extents), threads) as at:
            partial = tir.local([width], stage.buffer.dtype)
            tir.fill(partial, width, stage.init)
            total = tir.local([1], stage.buffer.dtype)
            tir.store(total, [tir.const(0)], stage.init)
            *outer, last = stage.reduce_extents
            full = tir.bind(last // tir.const(width))
            with self._loops(outer) as reduced:
                with tir.serial(full) as chunk, tir.vector(width) as lane:
                    k = chunk * tir.const(width) + lane
                    value = self._accumulated(stage, at, [*reduced, k], partial, lane)
                    tir.store(partial, [lane], value)
                with tir.serial(last - full * tir.const(width)) as rest:
                    k = full * tir.const(width) + rest
                    value = self._accumulated(stage, at, [*reduced, k], total, tir.const(0))
                    tir.store(total, [tir.const(0)], value)
            lanes = tir.horizontal(partial, width, combine)
            joined = combine(tir.load(total, [tir.const(0)]), lanes)
            tir.store(self.stored[stage.buffer], at, joined)

    def _scalar_reduction(self, stage: Stage, threads: bool) -> None:
        with self._outer(list(stage.spatial_extents), threads and stage.writes_identity) as at:
            total = tir.local([1], stage.buffer.dtype)
            tir.store(total, [tir.const(0)], stage.init)
            with self._reduce_loops(stage) as reduced:
                value = self._accumulated(stage, at, reduced, total, tir.const(0))
                tir.store(total, [tir.const(0)], value)
            places = dict(zip(stage.spatial_vars, at, strict=True))
            target = [rewrite(i, places.get) for i in stage.indices]
            tir.store(self.stored[stage.buffer], target, tir.load(total, [tir.const(0)]))

    def _accumulated(
        self, stage: Stage, at: Sequence[Any], reduced: Sequence[Any], acc: Any, place: Any
    ) -> Any:
        more = dict(zip(stage.reduce_vars, reduced, strict=True))
        return self._value(stage, at, more, accumulator=tir.load(acc, [place]))

    def _value(
        self,
        stage: Stage,
        at: Sequence[Any],
        more: dict[Any, Any],
        accumulator: Any | None = None,
    ) -> Any:
        """The stage's right-hand side at one element, pointwise producers inlined."""
        places = {**dict(zip(stage.spatial_vars, at, strict=True)), **more}
        by_buffer = {s.buffer: s for s in self.kernel.stages if s is not stage}

        def replace(node: Any) -> Any | None:
            if isinstance(node, TensorLoad):
                if node.source.same_as(stage.buffer) and accumulator is not None:
                    return accumulator
                indices = [rewrite(i, replace) for i in node.indices]
                producer = by_buffer.get(node.source)
                if producer is None or node.source in self.stored:
                    return self._load(node.source, indices)
                return self.kernel.element(producer, indices, self._load)
            return places.get(node) if isinstance(node, tirx.Var) else None

        return rewrite(stage.value, replace)

    # Loops

    def _outer(self, extents: list[Any], threads: bool) -> Any:
        """One loop over the product of `extents`; yields the index of each."""
        if not threads:
            return self._loops(extents)
        return self._fused_parallel(extents)

    @staticmethod
    def _fused_parallel(extents: list[Any]) -> Any:
        class Fused(ExitStack):
            def __enter__(self) -> Any:
                super().__enter__()
                index = self.enter_context(tir.parallel(tir.product(extents)))
                places: list[Any] = []
                for position in range(len(extents)):
                    inner = tir.product(extents[position + 1 :])
                    place = index if tir.static(inner) == 1 else index // inner
                    places.append(tir.bind(place if position == 0 else place % extents[position]))
                return places

        return Fused()

    @staticmethod
    def _loops(extents: Sequence[Any]) -> Any:
        class Nest(ExitStack):
            def __enter__(self) -> Any:
                super().__enter__()
                return [self.enter_context(tir.serial(n)) for n in extents]

        return Nest()

    def _reduce_loops(self, stage: Stage) -> Any:
        return self._loops(stage.reduce_extents)

    def _vector_width(self, stage: Stage) -> int:
        """Lanes of 32 bits; one for booleans, which are bytes in memory and bits in registers."""
        dtypes = {str(stage.buffer.dtype)}
        for other in self.kernel.stages:
            dtypes |= {str(n.ty) for n in walk(other.value) if isinstance(n, TensorLoad)}
        return 1 if "bool" in dtypes else self.lanes

    @staticmethod
    def _last_index_is(stage: Stage, variables: Sequence[Any]) -> bool:
        """Some operand is read along this variable: contiguous in memory."""
        if not variables:
            return False
        for node in walk(stage.value):
            if isinstance(node, TensorLoad) and node.indices and node.source is not stage.buffer:
                if node.source.same_as(stage.buffer):
                    continue
                if any(n.same_as(variables[0]) for n in walk(node.indices[-1])):
                    return True
        return False


def _combiner(stage: Stage) -> Any | None:
    """How two partial results join: for acc + x, max(acc, x) and min(acc, x)."""
    joins = {tirx.Add: lambda a, b: a + b, tirx.Max: tirx.max, tirx.Min: tirx.min}
    join = joins.get(type(stage.value))
    if join is None:
        return None
    first = stage.value.a
    if not (isinstance(first, TensorLoad) and first.source.same_as(stage.buffer)):
        return None
    neutral = {tirx.Add: 0.0}.get(type(stage.value))
    if neutral is not None and not _is_zero(stage.init):
        return None
    return join


def _is_zero(value: Any) -> bool:
    return isinstance(value, tirx.IntImm | tirx.FloatImm) and float(value.value) == 0.0
