"""Kernel templates: problem + target + decisions -> scheduled TIR, one template per file.

Two kinds, each an ordered list below in which the first answer wins and None means "not mine":

- `OPERATORS` write a whole kernel for one operator or composite:
  build(arguments' types, attributes, result type, target).
- `SCHEDULES` take a fused function apart and write its loops: apply(kernel, target).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from tvm import tirx

from graphc.codegen.kernel import FusedKernel
from graphc.codegen.templates import (
    attention,
    cache_append,
    gemm,
    gemm_bf16,
    gemm_int8,
    gemm_nbits,
    gpu,
    loops,
    normalization,
    paged_attention,
    quantize_rows,
    scan,
    softmax,
)
from graphc.targets.target import Target

Operator: TypeAlias = Callable[[Sequence[Any], Any, Any, Target], tirx.PrimFunc | None]
Schedule: TypeAlias = Callable[[FusedKernel, Target], tirx.PrimFunc | None]

OPERATORS: Mapping[str, tuple[Operator, ...]] = {
    "graphc.attention": (attention.build,),
    "graphc.quantize_rows": (quantize_rows.build,),
    "graphc.cache_append": (cache_append.build,),
    "graphc.paged_attention": (paged_attention.build,),
    "relax.cumsum": (scan.build,),
    "relax.nn.layer_norm": (normalization.build_layer_norm,),
    "relax.nn.rms_norm": (normalization.build_rms_norm,),
    "relax.nn.softmax": (softmax.build,),
}

SCHEDULES: tuple[Schedule, ...] = (
    gemm.apply,
    gemm_bf16.apply,
    gemm_int8.apply,
    gemm_nbits.apply,
    loops.apply,
)


def lookup(
    name: str, arguments: Sequence[Any], attrs: Any, result: Any, target: Target
) -> tirx.PrimFunc | None:
    """The kernel of the first operator template that accepts the call, else None."""
    operators = OPERATORS if target.device is None else gpu.OPERATORS
    for build in operators.get(name, ()):
        function = build(arguments, attrs, result, target)
        if function is not None:
            return function
    return None


def schedules(target: Target) -> tuple[Schedule, ...]:
    """The templates for fused functions on this target, in the order in which they are asked."""
    return SCHEDULES if target.device is None else gpu.SCHEDULES
