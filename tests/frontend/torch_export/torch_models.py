"""Small torch modules, compiled through the real stages and compared with eager."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from plan_runner import Compiled

from graphc import testing
from graphc.frontend.torch_export import live, load_program
from graphc.frontend.torch_export.program import quiet
from graphc.ir import Model
from graphc.passes import pipeline
from graphc.targets import load as targets

BATCH = torch.export.Dim("batch", min=1, max=64)
LENGTH = torch.export.Dim("length", min=2, max=64)


class Function(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def exported(
    module: torch.nn.Module, inputs: Sequence[torch.Tensor], dynamic: Sequence[Mapping[int, Any]]
) -> tuple[torch.export.ExportedProgram, dict[str, str]]:
    """A program and the names of its dimensions."""
    shapes: Any = tuple(dict(axes) for axes in dynamic)
    if isinstance(module, Function):  # it takes them as *arguments
        shapes = (shapes,)
    with quiet(), torch.no_grad():
        program = torch.export.export(
            module.eval(), tuple(inputs), dynamic_shapes=shapes, strict=False
        )
    return program, live.dim_names(program, inputs, {}, dynamic)


def imported(
    module: torch.nn.Module, inputs: Sequence[torch.Tensor], dynamic: Sequence[Mapping[int, Any]]
) -> Model:
    program, names = exported(module, inputs, dynamic)
    return load_program(program, names)


def check(
    module: torch.nn.Module | Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    *others: Sequence[torch.Tensor],
    dynamic: Sequence[Mapping[int, Any]] | None = None,
) -> Model:
    """Compiles with `inputs` as example and compares all outputs on them and on the others."""
    if not isinstance(module, torch.nn.Module):
        module = Function(module)
    model = imported(module, inputs, dynamic or [{}] * len(inputs))
    compiled = Compiled(pipeline.graph(model, targets.get("host")))
    for arguments in (inputs, *others):
        with torch.no_grad():
            result = module(*arguments)
        wanted = list(torch.utils._pytree.tree_leaves(result))
        actual = compiled([argument.numpy() for argument in arguments])
        for number, (got, want) in enumerate(zip(actual, wanted, strict=True)):
            expected = want.numpy()
            assert got.dtype == expected.dtype, (number, got.dtype, expected.dtype)
            assert got.shape == expected.shape, (number, got.shape, expected.shape)
            worst = testing.compare(np.asarray(got), expected).worst
            assert worst <= testing.tolerance(expected.dtype.name), (number, worst, got, expected)
    return model


def real(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def whole(*shape: int, low: int = -5, high: int = 5, seed: int = 0) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))
