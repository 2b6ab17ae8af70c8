"""Runs the steps of a plan from Python, control flow included, for tests without linking."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import sym, tirx

from graphc.codegen.plan import (
    Assign,
    Branch,
    CheckIndices,
    Clear,
    Continue,
    Copy,
    Enter,
    Expose,
    FunctionPlan,
    Kernel,
    Loop,
    Measure,
    Observe,
    Step,
    Storage,
    Store,
)
from graphc.codegen.rewrite import rewrite
from graphc.ir import Dim


class Interpreter:
    """One run; `sizes` are the dimensions that are known, more of them as it goes on."""

    def __init__(
        self, plan: FunctionPlan, kernels: Callable[[str], Any], weights: Mapping[str, np.ndarray]
    ) -> None:
        self.plan, self.kernels, self.weights = plan, kernels, weights
        self.sizes: dict[str, int] = {}
        self.memory: dict[tuple[Storage, int], Any] = {}
        self.going = True

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        signature = self.plan.signature
        for port, value in zip(signature.inputs, inputs, strict=True):
            for dim, size in zip(port.shape, value.shape, strict=True):
                if isinstance(dim, tirx.Var):
                    self.sizes[dim.name] = size
        for number, value in enumerate(inputs):
            self.memory[Storage.INPUT, number] = _tensor(value)
        for number, name in enumerate(self.plan.weights):
            self.memory[Storage.WEIGHT, number] = _tensor(self.weights[name])
        self.steps(self.plan.steps)
        return [
            self.memory[Storage.OUTPUT, position]
            .numpy()
            .reshape([evaluate(dim, self.sizes) for dim in port.shape])
            for position, port in enumerate(signature.outputs)
        ]

    def steps(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if isinstance(step, Kernel):
                for number in step.writes:
                    self.make(number)
                arguments = [
                    self.view(a) if isinstance(a, int) else evaluate(a.value, self.sizes)
                    for a in step.args
                ]
                self.kernels(step.name)(*arguments)
            elif isinstance(step, Copy):
                self.make(step.target)
                self.view(step.source).copyto(self.view(step.target))
            elif not isinstance(step, CheckIndices):
                self.flow(step)

    def flow(self, step: Step) -> None:
        if isinstance(step, Measure):
            elements = self.view(step.tensor).numpy().reshape(-1)
            self.assign(step.dims, [int(element) for element in elements])
        elif isinstance(step, Assign):
            self.assign(step.dims, [evaluate(extent, self.sizes) for extent in step.extents])
        elif isinstance(step, Observe):
            extents = [evaluate(extent, self.sizes) for extent in step.extents]
            if self.sizes[step.step] == 0:
                self.assign(step.dims, extents)
            assert extents == [self.sizes[dim.name] for dim in step.dims], step
        elif isinstance(step, Branch):
            self.steps(step.then if self.truth(step.condition) else step.other)
        elif isinstance(step, Loop):
            self.loop(step)
        elif isinstance(step, Continue):
            self.going = self.truth(step.condition)
        elif isinstance(step, Clear):
            self.memory[Storage.SLOT, step.slot] = None
        elif isinstance(step, Store):
            value = self.view(step.source).numpy().reshape(-1)
            before = self.memory.get((Storage.SLOT, step.slot)) if step.append else None
            joined = value if before is None else np.concatenate([before.numpy(), value])
            self.memory[Storage.SLOT, step.slot] = _tensor(joined)
        elif isinstance(step, Enter):
            for constraint in self.plan.stages[step.stage - 1].constraints:
                sides = constraint.left, constraint.right
                left, right = (evaluate(side, self.sizes) for side in sides)
                assert left == right, constraint
        else:
            assert isinstance(step, Expose), step

    def loop(self, step: Loop) -> None:
        going = step.condition is None or self.truth(step.condition)
        self.sizes[step.step] = 0
        while going and self.sizes[step.step] < evaluate(step.limit, self.sizes):
            self.going = True
            self.steps(step.body)
            going = self.going
            self.sizes[step.step] += 1

    def assign(self, dims: Sequence[Dim], values: Sequence[int]) -> None:
        for dim, value in zip(dims, values, strict=True):
            assert dim.lower <= value and (dim.upper is None or value <= dim.upper), (dim, value)
            self.sizes[dim.name] = value

    def truth(self, number: int) -> bool:
        return bool(self.view(number).numpy().reshape(()))

    def shape(self, number: int) -> tuple[int, ...]:
        return tuple(evaluate(dim, self.sizes) for dim in self.plan.tensors[number].shape)

    def make(self, number: int) -> None:
        """Memory for what is about to be written, filled with something that is no result."""
        tensor = self.plan.tensors[number]
        value = np.full(self.shape(number), 7, _numpy(tensor.dtype))
        self.memory[tensor.storage, tensor.index] = _tensor(value)

    def view(self, number: int) -> Any:
        tensor, shape = self.plan.tensors[number], self.shape(number)
        memory = self.memory[tensor.storage, tensor.index]
        if memory is None:  # a loop without iterations
            memory = _tensor(np.zeros(shape, _numpy(tensor.dtype)))
        return memory._create_view(shape)


def evaluate(expr: Any, sizes: Mapping[str, int]) -> int:
    """The value of a dimension when the symbolic ones are known."""
    if isinstance(expr, int):
        return expr

    def value(node: Any) -> Any | None:
        return tirx.IntImm("int64", sizes[node.name]) if isinstance(node, tirx.Var) else None

    return int(sym.Analyzer().simplify(rewrite(expr, value)).value)


def _numpy(dtype: str) -> Any:
    return np.dtype(dtype)


def _tensor(value: np.ndarray) -> Any:
    return tvm.runtime.tensor(np.require(value, requirements=["C", "A"]))
