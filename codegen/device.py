"""Thread-bound TIR -> source of device kernels, and the object file of the code that starts them.

TVM splits each function: what runs in threads becomes a device kernel, what is left computes the
launch's extents and arguments on the CPU and calls the kernel by name (graphc/runtime/launch.c
answers). Every kernel is a program of its own: one that a device refuses leaves the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import tvm
from tvm import s_tir, tirx
from tvm.tirx.build import split_host_device_mods
from tvm_ffi import structural_map

from graphc.codegen import vulkan
from graphc.codegen.cpu import object_file
from graphc.targets.target import Target

LOWERING: Final = (
    s_tir.transform.CanonicalizeLoop,
    s_tir.transform.LowerInitBlock,
    s_tir.transform.PlanAndUpdateBufferAllocationLocation,
    s_tir.transform.ConvertBlocksToOpaque,
    s_tir.transform.CompactBufferAllocation,
    s_tir.transform.UnifyThreadBinding,
    s_tir.transform.LowerMatchBuffer,
    s_tir.transform.StmtSimplify,
    s_tir.transform.LowerOpaqueBlock,
    tirx.transform.FlattenBuffer,
    tirx.transform.BF16ComputeLegalize,
    tirx.transform.VectorizeLoop,
    tirx.transform.StorageRewrite,
    tirx.transform.UnrollLoop,
    s_tir.transform.RenormalizeSplitPattern,
    tirx.transform.StmtSimplify,
    tirx.transform.RemoveNoOp,
    s_tir.transform.RewriteUnsafeSelect,
    tirx.transform.VerifyMemory,
    tirx.transform.AnnotateEntryFunc,
)
_SHARED: Final = "shared"
_DEVICE_CALL: Final = 2  # TVM's calling convention kDeviceKernelLaunch
_AXES: Final = (
    "blockIdx.x",
    "blockIdx.y",
    "blockIdx.z",
    "threadIdx.x",
    "threadIdx.y",
    "threadIdx.z",
)


@dataclass(frozen=True)
class DeviceKernel:
    """One kernel: its source text for OpenCL, SPIR-V for Vulkan.

    `arguments` has a letter for each argument: `p` a pointer, `i` and `l` integers of 32 and 64
    bits, `f` a float. `extents` are the places (0 to 2: work-groups, 3 to 5: threads of one, along
    x, y, z) that the last arguments of a launch give.
    """

    name: str
    code: bytes
    arguments: str
    extents: tuple[int, ...]


def build_device(
    functions: Mapping[str, tirx.PrimFunc], target: Target
) -> tuple[bytes, tuple[DeviceKernel, ...]]:
    """The object file of the launching functions `__tvm_ffi_<name>`, and the device's kernels."""
    assert target.device is not None
    host = tvm.target.Target(target.tvm_dict())
    device = tvm.target.Target(_tvm_device(target), host=host)
    symbols = {name: functions[name].with_attr("global_symbol", name) for name in sorted(functions)}
    mod = tirx.transform.BindTarget(device)(tvm.IRModule(symbols))
    for lowering in LOWERING:
        mod = lowering()(mod)
    mod = s_tir.transform.ThreadSync(_SHARED)(mod)
    mod = s_tir.transform.LowerThreadAllreduce()(mod)
    for lowering in (tirx.transform.SplitHostDevice, tirx.transform.MakePackedAPI):
        mod = lowering()(mod)
    host_mod, parts = split_host_device_mods(mod)
    for lowering in (tirx.transform.LowerTVMBuiltin, tirx.transform.LowerIntrin):
        host_mod = lowering()(host_mod)
    kernels = [
        _kernel(gvar.name_hint, function, device, target)
        for part in parts.values()
        for gvar, function in sorted(part.functions.items(), key=lambda item: item[0].name_hint)
    ]
    library = tvm.get_global_func("target.build.llvm")(host_mod, host)
    return object_file(library), tuple(kernels)


def _tvm_device(target: Target) -> dict[str, Any]:
    assert target.device is not None
    return {
        "kind": target.device.kind,
        "max_num_threads": target.device.max_threads,
        "max_shared_memory_per_block": target.device.shared_bytes,
        "thread_warp_size": 1,  # nothing is assumed of threads that run in step
    }


def _kernel(name: str, function: tirx.PrimFunc, device: Any, target: Target) -> DeviceKernel:
    assert target.device is not None
    assert int(function.attrs["calling_conv"]) == _DEVICE_CALL, name
    function = _plain_names(function)
    code = _CODE[target.device.kind](name, function, device)
    extents = tuple(_AXES.index(str(tag)) for tag in function.attrs["tirx.kernel_launch_params"])
    arguments = "".join(_letter(param) for param in function.params)
    return DeviceKernel(name, code, arguments, extents)


def _lowered(name: str, function: tirx.PrimFunc) -> tvm.IRModule:
    mod = tvm.IRModule({name: function})
    for lowering in (s_tir.transform.StmtSimplify, tirx.transform.LowerIntrin):
        mod = lowering()(mod)
    return mod


def _opencl(name: str, function: tirx.PrimFunc, device: Any) -> bytes:
    mod = structural_map(_lowered(name, function), (tirx.FloatImm, _exact))
    built = tvm.get_global_func("target.build.opencl")(mod, device)
    return str(built.inspect_source()).encode()


def _exact(constant: Any) -> Any:
    """TVM prints floats with seven digits: what they do not hold is given by its bits."""
    value = float(constant.value)
    if str(constant.ty) != "float32" or not math.isfinite(value):
        return constant
    single = np.float32(value)
    if np.float32(f"{single:e}") == single:
        return constant
    bits = tirx.IntImm("int32", int(single.view(np.int32)))
    return tirx.call_pure_extern("float32", "as_float", bits)


def _vulkan(name: str, function: tirx.PrimFunc, device: Any) -> bytes:
    # TVM has no intrinsics for Vulkan; those of OpenCL are lowered to names that GLSL knows too.
    del device
    function = function.with_attr("target", tvm.target.Target({"kind": "opencl"}))
    return vulkan.compile_kernel(_lowered(name, function)[name], name)


_CODE: Final = {"opencl": _opencl, "vulkan": _vulkan}


def _plain_names(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with parameters called p0, p1, ...: names of an untrusted model are no code."""
    fresh = {old: tirx.Var(f"p{i}", old.ty) for i, old in enumerate(function.params)}
    body = structural_map(function.body, (tirx.Var, lambda var: fresh.get(var, var)))
    params = [fresh[old] for old in function.params]
    return tirx.PrimFunc(params, body, function.ret_type, attrs=function.attrs)


def _letter(param: Any) -> str:
    kind = str(param.ty)
    letters = {"int32": "i", "int64": "l", "float32": "f"}
    return letters.get(kind, "p")
