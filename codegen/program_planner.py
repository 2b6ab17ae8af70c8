"""A program over lowered Relax functions -> its static plan, with branches, loops and late stages.

A loop in the plan:

    slot k = initial value k; inner dimensions = initial extents
    while step < limit and condition:
        enter the header's stage; expose the slots
        the body
        observe the slices' extents; append the slices
        slot k = next value k; inner dimensions = next extents
    outer dimensions = inner ones; enter their stage; expose the slots
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from graphc import flow
from graphc.codegen.plan import (
    Assign,
    Branch,
    Clear,
    Continue,
    Copy,
    Enter,
    Expose,
    FunctionPlan,
    Loop,
    Measure,
    Observe,
    Stage,
    Step,
    Storage,
    Store,
)
from graphc.codegen.planner import Planner
from graphc.ir import Constraint, Dim, Expr, Model


def plan_program(model: Model, name: str) -> FunctionPlan:
    """The plan of the program `name` of a lowered model."""
    program = model.programs[name]
    planner = _ProgramPlanner(model, name, program)
    return planner.finish(planner.run())


class _ProgramPlanner(Planner):
    def __init__(self, model: Model, name: str, program: flow.Program) -> None:
        super().__init__(model, name, program.signature)
        self.program = program
        self.numbers: dict[int, int] = {}  # a program's value -> tensor

    def run(self) -> list[int]:
        ports = self.signature.inputs
        for position, (value, port) in enumerate(zip(self.program.inputs, ports, strict=True)):
            self.numbers[value] = self.tensor(
                Storage.INPUT, position, port.dtype, port.shape, port.name
            )
        return self._block(self.program.body)

    # Steps

    def _block(self, block: flow.Block) -> list[int]:
        if block.constraints:
            self._enter((), block.constraints)
        for step in block.steps:
            if isinstance(step, flow.Call):
                self._call_segment(step)
            elif isinstance(step, flow.Bind):
                at = self.numbers[step.value]
                assert self.tensors[at].dtype == "int64", self.tensors[at]
                self.steps.append(Measure(at, step.dims, step.where))
                self._enter(step.dims, step.constraints)
            elif isinstance(step, flow.Branch):
                self._branch(step)
            else:
                self._loop(step)
        return [self.numbers[value] for value in block.results]

    def _call_segment(self, call: flow.Call) -> None:
        results = self.segment(call.function, [self.numbers[value] for value in call.inputs])
        self.numbers.update(zip(call.outputs, results, strict=True))

    def _branch(self, step: flow.Branch) -> None:
        late = bool(step.dims or step.constraints)
        stage = 0
        paths: list[tuple[Step, ...]] = []
        targets: list[int] = []
        for block, extents in zip(step.blocks, step.extents, strict=True):

            def path(block: flow.Block = block, extents: tuple[Expr, ...] = extents) -> None:
                nonlocal stage
                results = self._block(block)
                if late:
                    self.steps.append(Assign(step.dims, extents, step.where))
                    if not targets and not paths:
                        stage = self._stage(step.dims, step.constraints)
                    self.steps.append(Enter(stage))
                if not paths:
                    targets.extend(self._arena(value) for value in step.outputs)
                self.steps.extend(map(Copy, results, targets))

            paths.append(self._nested(path))
        self.steps.append(Branch(self.numbers[step.condition], paths[0], paths[1]))
        self.numbers.update(zip(step.outputs, targets, strict=True))

    def _loop(self, step: flow.Loop) -> None:
        slots = [self._slot() for _ in step.initial]
        stacks = [self._slot() for _ in step.stacked]
        observed = tuple(dim for dim, _ in step.observed)
        for value, slot in zip(step.initial, slots, strict=True):
            self.steps.append(Store(self.numbers[value], slot))
        self.steps.extend(map(Clear, stacks))
        self._assign(step.inner_dims, step.initial_extents, step.where)
        self._assign(observed, (0,) * len(observed), step.where)

        def body() -> None:
            header = self._enter((step.step, *step.inner_dims), ())
            for value, slot in zip(step.inner, slots, strict=True):
                self._view_slot(value, slot)
                self.steps.append(Expose(slot, header))
            results = self._block(step.body)
            if step.condition is not None:
                self.steps.append(Continue(results.pop(0)))
            carried, slices = results[: len(slots)], results[len(slots) :]
            extents = tuple(extent for _, extent in step.observed)
            if observed:
                self.steps.append(Observe(step.step.name, observed, extents, step.where))
            for number, slot in zip(slices, stacks, strict=True):
                self.steps.append(Store(number, slot, append=True))
            self._carry(carried, slots)
            self._assign(step.inner_dims, step.next_extents, step.where)

        condition = None if step.condition is None else self.numbers[step.condition]
        self.steps.append(Loop(step.step.name, step.limit, condition, self._nested(body)))
        self._assign(step.dims, step.outer_extents, step.where)
        after = self._enter((*step.dims, *observed), step.constraints)
        for value, slot in zip((*step.outputs, *step.stacked), (*slots, *stacks), strict=True):
            self._view_slot(value, slot)
            self.steps.append(Expose(slot, after))

    def _carry(self, numbers: Sequence[int], slots: Sequence[int]) -> None:
        """Stores the next carried values; those that lie in other slots are saved before."""
        sources = list(numbers)
        for position, (number, slot) in enumerate(zip(numbers, slots, strict=True)):
            tensor = self.tensors[number]
            if tensor.storage is Storage.SLOT and tensor.index != slot:
                saved = self.tensor(Storage.ARENA, -1, tensor.dtype, tensor.shape, tensor.name)
                self.steps.append(Copy(number, saved))
                sources[position] = saved
        for number, slot in zip(sources, slots, strict=True):
            tensor = self.tensors[number]
            if tensor.storage is not Storage.SLOT:
                self.steps.append(Store(number, slot))

    # Pieces

    def _nested(self, write: Callable[[], None]) -> tuple[Step, ...]:
        """The steps that `write` adds."""
        around, self.steps = self.steps, []
        write()
        steps, self.steps = tuple(self.steps), around
        return steps

    def _assign(self, dims: tuple[Dim, ...], extents: Iterable[Expr], where: str) -> None:
        if dims:
            self.steps.append(Assign(dims, tuple(extents), where))

    def _stage(self, dims: tuple[Dim, ...], constraints: tuple[Constraint, ...]) -> int:
        self.stages.append(Stage(dims, constraints))
        for dim in dims:
            assert dim.name not in self.dim_stages, f"dimension {dim.name!r} is bound twice"
            self.dim_stages[dim.name] = len(self.stages)
        return len(self.stages)

    def _enter(self, dims: tuple[Dim, ...], constraints: tuple[Constraint, ...]) -> int:
        stage = self._stage(dims, constraints)
        self.steps.append(Enter(stage))
        return stage

    def _arena(self, value: int) -> int:
        what = self.program.values[value]
        return self.tensor(Storage.ARENA, -1, what.dtype, what.shape, what.name)

    def _slot(self) -> int:
        self.slots += 1
        return self.slots - 1

    def _view_slot(self, value: int, slot: int) -> None:
        what = self.program.values[value]
        self.numbers[value] = self.tensor(Storage.SLOT, slot, what.dtype, what.shape, what.name)
