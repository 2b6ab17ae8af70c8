"""Reads a fused PrimFunc as what it computes: a list of stages, each one block of one loop nest.

    for i, j, k: root[i, j] += ...          Stage root     (a reduction; what a template tiles)
    for i, j: t[i, j] = root[i, j] + b[j]   Stage t        (pointwise: its value is inlined
    for i, j: out[i, j] = max(t[i, j], 0)   Stage out       wherever a template stores)

Templates write their own loops; from the fused function they need the root's problem and, for
everything around it, the value of an element as an expression of its indices.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import s_tir, tirx
from tvm.ir import TensorLoad

from graphc.codegen import builder as tir
from graphc.codegen.rewrite import rewrite, walk

Loader = Callable[[Any, list[Any]], Any]
"""(buffer, indices) -> the expression that reads this element."""


@dataclass(frozen=True)
class Stage:
    """One block: `buffer[indices] = value` for every value of the iteration variables.

    A reduction (`init` is not None) accumulates over `reduce_vars`; its `value` reads the
    accumulator as `buffer[indices]`.
    """

    name: str
    buffer: Any
    indices: tuple[Any, ...]
    value: Any
    init: Any | None
    spatial_vars: tuple[Any, ...]
    spatial_extents: tuple[Any, ...]
    reduce_vars: tuple[Any, ...]
    reduce_extents: tuple[Any, ...]
    annotations: Mapping[str, Any]

    @property
    def is_pointwise(self) -> bool:
        """Writes each element once, from values at indices that depend on this element only."""
        return self.init is None and not self.reduce_vars and self.writes_identity

    @property
    def writes_identity(self) -> bool:
        """The element written is named by the spatial variables themselves, in order."""
        if len(self.indices) != len(self.spatial_vars):
            return False
        return all(i.same_as(v) for i, v in zip(self.indices, self.spatial_vars, strict=True))


@dataclass(frozen=True)
class FusedKernel:
    """All stages of a PrimFunc in order; the last ones write its output parameters."""

    func: tirx.PrimFunc
    name: str
    stages: tuple[Stage, ...]

    @property
    def params(self) -> tuple[Any, ...]:
        return tuple(self.func.params)

    @property
    def outputs(self) -> tuple[Stage, ...]:
        """The stages that write parameters."""
        params = {p.name for p in self.params}
        return tuple(s for s in self.stages if s.buffer.name in params and is_param(self, s.buffer))

    def root(self, template: str) -> Stage | None:
        """The stage that was emitted for `template` (block annotation graphc.template)."""
        for stage in self.stages:
            if str(stage.annotations.get("graphc.template", "")) == template:
                return stage
        return None

    def store_vector(
        self,
        stage: Stage,
        indices: Callable[[Any], list[Any]],
        lanes: int,
        load: Loader,
        write: Callable[[list[Any], Any], None],
    ) -> None:
        """Emits `write(indices(lane), value)` for a vector of elements of a pointwise `stage`.

        A pointwise stage that several others read at the same element is computed once, into a
        vector of its own: inlining it everywhere would double the work at each such stage.
        """
        temporaries: dict[Any, Any] = {}

        def load_or_temporary(lane: Any) -> Loader:
            def read(buffer: Any, at: list[Any]) -> Any:
                if buffer in temporaries:
                    return tir.load(temporaries[buffer], [lane])
                return load(buffer, at)

            return read

        for shared in self._shared_before(stage):
            vector = tir.local([lanes], shared.buffer.dtype)
            with tir.vector(lanes) as lane:
                value = self.element(shared, indices(lane), load_or_temporary(lane), temporaries)
                tir.store(vector, [lane], value)
            temporaries[shared.buffer] = vector

        def value_at(lane: Any) -> Any:
            return self.element(stage, indices(lane), load_or_temporary(lane), temporaries)

        if str(stage.buffer.dtype) == "bfloat16":
            # Rounding repeats its operand in TVM's expansion: it must be a value, not a formula.
            exact = tir.local([lanes], "float32")
            with tir.vector(lanes) as lane:
                tir.store(exact, [lane], _unrounded(value_at(lane)))
            with tir.vector(lanes) as lane:
                write(indices(lane), tirx.Cast("bfloat16", tir.load(exact, [lane])))
            return
        with tir.vector(lanes) as lane:
            write(indices(lane), value_at(lane))

    def _shared_before(self, stage: Stage) -> list[Stage]:
        """Stages read more than once on the way to `stage`, always at its own element.

        A reader that is itself read elsewhere (by a concatenation, a transpose) does not count as
        being at the element, however it reads.
        """
        readers: dict[Any, list[bool]] = {}
        reached = {stage.buffer}
        order = self.stages[: self.stages.index(stage) + 1]
        for reader in reversed(order):
            if reader.buffer not in reached or not (reader.is_pointwise or reader is stage):
                continue
            in_place = reader is stage or all(readers[reader.buffer])
            for node in walk(reader.value):
                if isinstance(node, TensorLoad):
                    reached.add(node.source)
                    same = (
                        in_place
                        and len(node.indices) == len(reader.spatial_vars)
                        and all(
                            i.same_as(v)
                            for i, v in zip(node.indices, reader.spatial_vars, strict=True)
                        )
                    )
                    readers.setdefault(node.source, []).append(same)
        return [
            s
            for s in order[:-1]
            if s.is_pointwise
            and len(readers.get(s.buffer, ())) > 1
            and all(readers[s.buffer])
            and len(s.spatial_vars) == len(stage.spatial_vars)
        ]

    def element(
        self,
        stage: Stage,
        indices: Sequence[Any],
        load: Loader,
        leaves: Container[Any] = (),
    ) -> Any:
        """The value of `stage.buffer[indices]`, with all pointwise stages before it inlined.

        `load` gives the expression for reading a parameter, a stage that is not pointwise or one
        of the `leaves`. A stage that is no pointwise one is loaded itself.
        """
        if not stage.is_pointwise:
            return load(stage.buffer, list(indices))
        producers = {s.buffer: s for s in self.stages if s.is_pointwise and s.buffer not in leaves}
        return _inline(stage, indices, producers, load)

    def inlined(self, expr: Any, places: Mapping[Any, Any], load: Loader) -> Any:
        """An expression of a stage, its variables replaced by `places` and producers inlined."""
        producers = {s.buffer: s for s in self.stages if s.is_pointwise}

        def replace(node: Any) -> Any | None:
            if isinstance(node, TensorLoad):
                at = [rewrite(i, replace) for i in node.indices]
                producer = producers.get(node.source)
                return (
                    load(node.source, at) if producer is None else self.element(producer, at, load)
                )
            return places.get(node) if isinstance(node, tirx.Var) else None

        return rewrite(expr, replace)


def _unrounded(value: Any) -> Any:
    """A bfloat16 expression in float32, before it is rounded when it is."""
    if isinstance(value, tirx.Cast) and str(value.value.ty) == "float32":
        return value.value
    return tirx.Cast("float32", value)


def is_param(kernel: FusedKernel, buffer: Any) -> bool:
    """Whether the buffer is one of the function's parameters."""
    return any(buffer.same_as(p) for p in kernel.params)


def is_contraction(stage: Stage) -> bool:
    """Whether it sums products of two elements, like a matrix product."""
    if stage.init is None or not stage.reduce_vars:
        return False
    return any(isinstance(n, tirx.Mul) and _reads(n.a) and _reads(n.b) for n in walk(stage.value))


def _reads(expr: Any) -> bool:
    return any(isinstance(node, TensorLoad) for node in walk(expr))


def read_kernel(func: tirx.PrimFunc, name: str) -> FusedKernel | None:
    """The stages of `func`, or None when its body is not a sequence of plain block nests."""
    root = func.body
    if not isinstance(root, s_tir.SBlockRealize):
        return None
    body = root.block.body
    nests = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    stages = []
    for nest in nests:
        stage = _read_stage(nest)
        if stage is None:
            return None
        stages.append(stage)
    return FusedKernel(func, name, tuple(stages))


def _read_stage(nest: Any) -> Stage | None:
    loops: list[Any] = []
    while isinstance(nest, tirx.For):
        loops.append(nest)
        nest = nest.body
    if not isinstance(nest, s_tir.SBlockRealize):
        return None
    block = nest.block
    if not isinstance(block.body, tirx.BufferStore) or len(block.alloc_buffers):
        return None
    # The block's variables must be the loops', one for one: nothing has been scheduled yet.
    values = list(nest.iter_values)
    iter_vars = list(block.iter_vars)
    if not loops and len(values) == 1 and tir.static(iter_vars[0].dom.extent) == 1:
        # TVM gives the block of a scalar, which has no loop, a variable that is always 0.
        values, iter_vars = [], []
    if len(values) != len(loops) or not tirx_is_true(nest.predicate):
        return None
    if not all(v.same_as(loop.loop_var) for v, loop in zip(values, loops, strict=True)):
        return None
    init = block.init
    if init is not None and not isinstance(init, tirx.BufferStore):
        return None
    spatial = [iv for iv in iter_vars if iv.iter_type == tirx.IterVar.DataPar]
    reduce = [iv for iv in iter_vars if iv.iter_type == tirx.IterVar.CommReduce]
    if len(spatial) + len(reduce) != len(iter_vars):
        return None
    store = block.body
    return Stage(
        name=str(block.name_hint),
        buffer=store.buffer,
        indices=tuple(store.indices),
        value=store.value,
        init=None if init is None else init.value,
        spatial_vars=tuple(iv.var for iv in spatial),
        spatial_extents=tuple(iv.dom.extent for iv in spatial),
        reduce_vars=tuple(iv.var for iv in reduce),
        reduce_extents=tuple(iv.dom.extent for iv in reduce),
        annotations=dict(block.annotations.items()),
    )


def tirx_is_true(predicate: Any) -> bool:
    """Whether a predicate is the constant true."""
    return isinstance(predicate, tirx.IntImm) and int(predicate.value) == 1


def _inline(
    stage: Stage, indices: Sequence[Any], producers: Mapping[Any, Stage], load: Loader
) -> Any:
    variables = dict(zip(stage.spatial_vars, indices, strict=True))

    def replace(node: Any) -> Any | None:
        if isinstance(node, TensorLoad):
            at = [rewrite(i, replace) for i in node.indices]
            producer = producers.get(node.source)
            if producer is not None and producer is not stage:
                return _inline(producer, at, producers, load)
            return load(node.source, at)
        if isinstance(node, tirx.Var):
            return variables.get(node)
        return None

    return rewrite(stage.value, replace)
