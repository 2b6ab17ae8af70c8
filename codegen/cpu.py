"""Scheduled TIR -> one native object file, through TVM's LLVM back end."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tvm
from tvm import s_tir, tirx

from graphc.errors import ToolError
from graphc.targets.target import Target

# What is left of TVM's pipeline for CPUs: no GPU passes and no loop partitioning (templates write
# their own edges). NarrowDataType is left out: 32-bit indices would overflow on large activations.
# CommonSubexprElim only adds variables that LLVM removes again.
LOWERING = (
    s_tir.transform.CanonicalizeLoop,
    s_tir.transform.LowerInitBlock,
    s_tir.transform.PlanAndUpdateBufferAllocationLocation,
    s_tir.transform.ConvertBlocksToOpaque,
    s_tir.transform.CompactBufferAllocation,
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
    tirx.transform.FP8ComputeLegalize,
    tirx.transform.VerifyMemory,
    tirx.transform.AnnotateEntryFunc,
    tirx.transform.MakePackedAPI,
    tirx.transform.FP8StorageLegalize,
    tirx.transform.BF16StorageLegalize,
    tirx.transform.LowerTVMBuiltin,
    tirx.transform.LowerIntrin,
)


OWN_BUFFERS = "graphc.own_buffers"
"""Attribute of a kernel whose buffers share no memory.

TVM puts accumulators into a larger buffer that is not needed any more; LLVM then keeps them in
memory, and stores them in every turn of a loop.
"""

_LARGEST_OBJECT = 1 << 28
_BATCH = 8  # kernels in an object file


def build_module(functions: Mapping[str, tirx.PrimFunc], target: Target) -> Any:
    """TVM's module of one entry `__tvm_ffi_<name>` for each function."""
    tvm_target = tvm.target.Target(target.tvm_dict())
    # The count of operations reads dimensions of the parameters, which lowering takes away.
    symbols = {
        name: functions[name].without_attr("graphc.flops").with_attr("global_symbol", name)
        for name in sorted(functions)
    }
    mod = tvm.IRModule(symbols)
    mod = tirx.transform.BindTarget(tvm_target.with_host(tvm_target))(mod)
    for lowering in LOWERING:
        if lowering is tirx.transform.StorageRewrite:
            mod = _rewrite_storage(mod)
        else:
            mod = lowering()(mod)
    return tvm.get_global_func("target.build.llvm")(mod, tvm_target)


def _rewrite_storage(mod: tvm.IRModule) -> tvm.IRModule:
    """Lets buffers share memory, except in functions with the attribute `OWN_BUFFERS`."""
    functions = dict(mod.functions.items())
    shared = {g: f for g, f in functions.items() if not (f.attrs and OWN_BUFFERS in f.attrs)}
    rewritten = tirx.transform.StorageRewrite()(tvm.IRModule(shared))
    return tvm.IRModule({**functions, **dict(rewritten.functions.items())})


def build_objects(functions: Mapping[str, tirx.PrimFunc], target: Target) -> tuple[bytes, ...]:
    """Object files with these functions, made by all processors of this machine at once.

    LLVM works outside of Python's lock. How functions are divided does not depend on the machine,
    so that the same functions give the same bytes.
    """
    names = sorted(functions)
    batches = [names[start : start + _BATCH] for start in range(0, len(names), _BATCH)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        work = (
            pool.submit(build_object, {name: functions[name] for name in batch}, target)
            for batch in batches
        )
        return tuple(job.result() for job in list(work))


def build_object(functions: Mapping[str, tirx.PrimFunc], target: Target) -> bytes:
    """The native object file with these functions; the same functions give the same bytes."""
    return object_file(build_module(functions, target))


def object_file(library: Any) -> bytes:
    """The object file of TVM's LLVM module."""
    # A file in memory, with room in it: LLVM ends the whole process when it cannot write.
    descriptor = os.memfd_create("kernels.o")
    try:
        try:
            os.ftruncate(descriptor, _LARGEST_OBJECT)  # takes no memory until it is written
        except OSError as error:
            raise ToolError(
                f"files may not grow to {_LARGEST_OBJECT >> 20} MB ({error.strerror}): "
                "raise the limit (ulimit -f)"
            ) from error
        library.write_to_file(f"/proc/self/fd/{descriptor}", "o")
        return Path(f"/proc/self/fd/{descriptor}").read_bytes()
    finally:
        os.close(descriptor)
