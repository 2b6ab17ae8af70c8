"""Scheduled model -> what an artifact is linked from: object files, plans, weights, records."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from graphc.artifact import KernelInfo
from graphc.codegen.cpu import build_objects
from graphc.codegen.device import DeviceKernel, build_device
from graphc.codegen.plan import FunctionPlan
from graphc.codegen.planner import plan
from graphc.codegen.program_planner import plan_program
from graphc.ir import Model, Weights
from graphc.targets.target import Target


@dataclass(frozen=True)
class Built:
    """`objects` are the bytes of native object files; `weights` are in the plans' order.

    `device_kernels` are what the objects' functions start on the target's device, if it has one.
    """

    objects: tuple[bytes, ...]
    plans: tuple[FunctionPlan, ...]
    weights: Weights
    kernels: tuple[KernelInfo, ...]
    device_kernels: tuple[DeviceKernel, ...] = ()


def build(model: Model, target: Target) -> Built:
    """Native code for every kernel that a plan calls."""
    plans = tuple(
        plan_program(model, name) if name in model.programs else plan(model, name)
        for name in model.exported
    )
    called = {name: kernel for p in plans for name, kernel in p.kernels().items()}
    functions = {
        gvar.name_hint: function
        for gvar, function in model.mod.functions.items()
        if isinstance(function, tirx.PrimFunc) and gvar.name_hint in called
    }
    assert functions.keys() == called.keys(), called.keys() - functions.keys()
    names = list(dict.fromkeys(name for p in plans for name in p.weights))
    device_kernels: tuple[DeviceKernel, ...] = ()
    if target.device is None:
        objects = build_objects(functions, target)
    else:
        native, device_kernels = build_device(functions, target)
        objects = (native,)
    return Built(
        objects=objects,
        plans=plans,
        weights=Weights(model.params).only(names),
        kernels=tuple(
            KernelInfo(name, called[name].template or "none", None) for name in sorted(called)
        ),
        device_kernels=device_kernels,
    )
