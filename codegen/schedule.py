"""Gives every kernel its loops: the first template that accepts it wins."""

from __future__ import annotations

from dataclasses import replace

from tvm import tirx

from graphc import env
from graphc.codegen.kernel import read_kernel
from graphc.codegen.templates import schedules
from graphc.ir import Model
from graphc.targets.target import Target


def schedule(model: Model, target: Target) -> Model:
    """The model with all its TIR functions scheduled.

    A function that is no sequence of plain block nests keeps TVM's loops, which are serial and
    slow; GRAPHC_DEBUG=2 names it.
    """
    functions = dict(model.mod.functions.items())
    for gvar, function in functions.items():
        if isinstance(function, tirx.PrimFunc) and not is_scheduled(function):
            functions[gvar] = schedule_function(function, gvar.name_hint, target)
    mod = type(model.mod)(functions, attrs=model.mod.attrs)
    return replace(model, mod=mod)


def schedule_function(function: tirx.PrimFunc, name: str, target: Target) -> tirx.PrimFunc:
    """One function under the first template that accepts it."""
    kernel = read_kernel(function, name)
    if kernel is not None:
        for template in schedules(target):
            scheduled = template(kernel, target)
            if scheduled is not None:
                return scheduled
    if env.debug() >= 2:
        env.log(2, f"schedule: {name} keeps TVM's serial loops: not a sequence of plain blocks")
    return function


def is_scheduled(function: tirx.PrimFunc) -> bool:
    """A template has already written this function."""
    return function.attrs is not None and "tirx.is_scheduled" in function.attrs
