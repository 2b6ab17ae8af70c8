"""Compiles a Relax model with the real stages and runs its plan from Python, without linking.

Kernels come from TVM's just-in-time loader over the same lowering as an artifact's, so that a
test of one template takes a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from plan_interpreter import Interpreter
from tvm import tirx

from graphc.codegen.build import Built, build
from graphc.codegen.cpu import build_module
from graphc.codegen.plan import FunctionPlan
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
        run = Interpreter(self.plan, lambda name: self.library[name], self.built.weights)
        return run.run(inputs)
