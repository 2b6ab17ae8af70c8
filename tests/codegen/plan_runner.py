"""Compiles a Relax model with the real stages and runs its plan from Python, without linking.

Kernels come from TVM's just-in-time loader over the same lowering as an artifact's, so that a
test of one template takes a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import sym, tirx

from graphc.codegen.build import Built, build
from graphc.codegen.cpu import build_module
from graphc.codegen.plan import Copy, FunctionPlan, Kernel, Storage
from graphc.codegen.rewrite import rewrite
from graphc.codegen.schedule import schedule
from graphc.ir import Model
from graphc.passes.layout import layout
from graphc.passes.lower import lower
from graphc.targets import load as targets
from graphc.targets.target import Target


class Compiled:
    """A model behind `layout`, `lower`, `schedule` and `build`, ready to run for any sizes."""

    def __init__(self, model: Model, target: Target | None = None) -> None:
        target = target or targets.get("host")
        self.model = schedule(lower(layout(model, target), target), target)
        self.built: Built = build(self.model, target)
        self.plan: FunctionPlan = self.built.plans[0]
        functions = {
            gvar.name_hint: function
            for gvar, function in self.model.mod.functions.items()
            if isinstance(function, tirx.PrimFunc)
        }
        self.library = build_module(functions, target)

    @property
    def templates(self) -> set[str]:
        """The names, without version and decisions, of the templates that made the kernels."""
        return {kernel.template.partition("/")[0] for kernel in self.built.kernels}

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        ports = self.plan.signature.inputs
        sizes: dict[str, int] = {}
        for port, value in zip(ports, inputs, strict=True):
            for dim, size in zip(port.shape, value.shape, strict=True):
                if isinstance(dim, tirx.Var):
                    sizes[dim.name] = size
        tensors = self._tensors(inputs, sizes)
        for step in self.plan.steps:
            if isinstance(step, Kernel):
                arguments = [
                    tensors[a] if isinstance(a, int) else evaluate(a.value, sizes)
                    for a in step.args
                ]
                self.library[step.name](*arguments)
            elif isinstance(step, Copy):
                tensors[step.source].copyto(tensors[step.target])
        outputs = {
            tensor.index: tensors[number].numpy()
            for number, tensor in enumerate(self.plan.tensors)
            if tensor.storage is Storage.OUTPUT
        }
        # An output may also have views of other shapes, which later kernels read.
        return [
            outputs[position].reshape([evaluate(dim, sizes) for dim in port.shape])
            for position, port in enumerate(self.plan.signature.outputs)
        ]

    def _tensors(self, inputs: Sequence[np.ndarray], sizes: Mapping[str, int]) -> list[Any]:
        weights = self.built.weights
        memory: dict[tuple[Storage, int], Any] = {}
        tensors = []
        for tensor in self.plan.tensors:
            shape = tuple(evaluate(dim, sizes) for dim in tensor.shape)
            place = (tensor.storage, tensor.index)
            if place not in memory:
                if tensor.storage is Storage.INPUT:
                    value = inputs[tensor.index]
                elif tensor.storage is Storage.WEIGHT:
                    value = weights[self.plan.weights[tensor.index]]
                else:
                    value = np.full(shape, 7, tensor.dtype)
                memory[place] = tvm.runtime.tensor(np.ascontiguousarray(value))
            tensors.append(memory[place]._create_view(shape))
        return tensors


def evaluate(expr: Any, sizes: Mapping[str, int]) -> int:
    """The value of a dimension when the symbolic ones are known."""
    if isinstance(expr, int):
        return expr

    def value(node: Any) -> Any | None:
        return tirx.IntImm("int64", sizes[node.name]) if isinstance(node, tirx.Var) else None

    return int(sym.Analyzer().simplify(rewrite(expr, value)).value)
