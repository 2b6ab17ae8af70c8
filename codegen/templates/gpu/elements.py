"""The fallback on devices: one thread for every element of a stage.

A reduction whose readers only want the reader's own element is summed up in the reader's thread;
any other stage that is no pointwise one is stored in between, by a launch of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import tirx
from tvm.ir import TensorLoad

from graphc.codegen import builder as tir
from graphc.codegen.kernel import FusedKernel, Stage, is_param
from graphc.codegen.rewrite import rewrite
from graphc.codegen.templates.gpu import threads
from graphc.targets.target import Target

NAME = "elements"
VERSION = 1


def apply(kernel: FusedKernel, target: Target) -> tirx.PrimFunc | None:
    """A launch for every stage that has to be stored; takes every kernel."""
    assert target.device is not None
    return _Elements(kernel, min(threads.WORK_GROUP, target.device.max_threads)).build()


class _Elements:
    def __init__(self, kernel: FusedKernel, size: int) -> None:
        self.kernel, self.size = kernel, size
        self.stored: dict[Any, Any] = {p: p for p in kernel.params}
        self.inner = self._summed_in_the_reader()

    def build(self) -> tirx.PrimFunc:
        with tir.function(self.kernel.name, self.kernel.params, f"{NAME}/{VERSION}") as build:
            for stage in self.kernel.stages:
                if stage is self.inner:
                    continue
                if stage.is_pointwise and not is_param(self.kernel, stage.buffer):
                    continue
                if stage.buffer not in self.stored:
                    shape = list(stage.buffer.shape)
                    self.stored[stage.buffer] = tir.workspace(shape, stage.buffer.dtype)
                self._stage(stage)
        return build.get()

    def _summed_in_the_reader(self) -> Stage | None:
        """The only reduction, when one pointwise output reads it at its own element."""
        heavy = [s for s in self.kernel.stages if not s.is_pointwise]
        outputs = self.kernel.outputs
        if len(heavy) != 1 or len(outputs) != 1 or heavy[0] is outputs[0]:
            return None
        root, output = heavy[0], outputs[0]
        if root.init is None or not root.writes_identity:
            return None
        seen: list[Sequence[Any]] = []

        def note(buffer: Any, at: list[Any]) -> Any:
            if buffer.same_as(root.buffer):
                seen.append(at)
            return tir.load(buffer, at)

        self.kernel.element(output, list(output.spatial_vars), note)
        own = list(output.spatial_vars)
        same = all(
            len(at) == len(own) and all(i.same_as(v) for i, v in zip(at, own, strict=True))
            for at in seen
        )
        return root if seen and same else None

    def _stage(self, stage: Stage) -> None:
        if stage.init is None and not stage.is_pointwise:
            # Places are computed, perhaps twice the same one: the last in order must win.
            with threads.group(tir.const(1)), threads.thread(1), _serial(stage) as at:
                self._store(stage, at, {}, self._load)
            return
        with threads.each(list(stage.spatial_extents), self.size) as at:
            if stage.init is not None:
                self._store_reduced(stage, at)
            elif self.inner is None:
                self._store(stage, at, {}, self._load)
            else:
                total = self._reduce(self.inner, at)
                root = self.inner.buffer

                def load(buffer: Any, where: Sequence[Any]) -> Any:
                    return total if buffer.same_as(root) else self._load(buffer, where)

                self._store(stage, at, {}, load)

    def _store_reduced(self, stage: Stage, at: Sequence[Any]) -> None:
        total = self._reduce(stage, at)
        places = dict(zip(stage.spatial_vars, at, strict=True))
        indices = [rewrite(i, places.get) for i in stage.indices]
        tir.store(self.stored[stage.buffer], indices, total)

    def _reduce(self, stage: Stage, at: Sequence[Any]) -> Any:
        """The sum, maximum or whatever it is over all reduced indices, in a register."""
        total = threads.private([1], stage.buffer.dtype)
        tir.store(total, [tir.const(0)], stage.init)
        with _Nest(stage.reduce_extents) as reduced:
            more = dict(zip(stage.reduce_vars, reduced, strict=True))
            value = self.value(stage, at, more, self._load, tir.load(total, [tir.const(0)]))
            tir.store(total, [tir.const(0)], value)
        return tir.load(total, [tir.const(0)])

    def _store(self, stage: Stage, at: Sequence[Any], more: Mapping[Any, Any], load: Any) -> None:
        places = {**dict(zip(stage.spatial_vars, at, strict=True)), **more}
        indices = [rewrite(i, places.get) for i in stage.indices]
        tir.store(self.stored[stage.buffer], indices, self.value(stage, at, more, load))

    def _load(self, buffer: Any, at: Sequence[Any]) -> Any:
        return tir.load(self.stored[buffer], at)

    def value(
        self,
        stage: Stage,
        at: Sequence[Any],
        more: Mapping[Any, Any],
        load: Any,
        accumulator: Any | None = None,
    ) -> Any:
        """The stage's right-hand side at one element, pointwise producers inlined."""
        return stage_value(self.kernel, stage, at, more, load, self.stored, accumulator)


def stage_value(
    kernel: FusedKernel,
    stage: Stage,
    at: Sequence[Any],
    more: Mapping[Any, Any],
    load: Any,
    stored: Mapping[Any, Any],
    accumulator: Any | None = None,
) -> Any:
    """The stage's right-hand side at indices `at` (spatial) and `more` (reduced variables)."""
    places = {**dict(zip(stage.spatial_vars, at, strict=True)), **more}
    producers = {s.buffer: s for s in kernel.stages if s is not stage}

    def replace(node: Any) -> Any | None:
        if isinstance(node, TensorLoad):
            if node.source.same_as(stage.buffer) and accumulator is not None:
                return accumulator
            indices = [rewrite(i, replace) for i in node.indices]
            producer = producers.get(node.source)
            if producer is None or node.source in stored:
                return load(node.source, indices)
            return kernel.element(producer, indices, load)
        return places.get(node) if isinstance(node, tirx.Var) else None

    return rewrite(stage.value, replace)


class _Nest:
    """Serial loops; yields their variables."""

    def __init__(self, extents: Sequence[Any]) -> None:
        self.extents = extents

    def __enter__(self) -> list[Any]:
        self.loops = [tir.serial(n) for n in self.extents]
        return [loop.__enter__() for loop in self.loops]

    def __exit__(self, *details: Any) -> None:
        for loop in reversed(self.loops):
            loop.__exit__(*details)


def _serial(stage: Stage) -> _Nest:
    return _Nest(list(stage.spatial_extents))
