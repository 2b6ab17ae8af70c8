"""Two bfloat16 products at once: acc[i] += a[0] * b[i, 0] + a[1] * b[i, 1], summed in float32.

`a` is two bfloat16 in an int32 (the first in the low half), the same for all lanes; `b` two for
each lane.

    AVX512-BF16   vdpbf16ps      one instruction
    otherwise     2 fused multiply-adds of halves that are shifted into place: a bfloat16 is the
                  upper half of a float32
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from graphc.codegen.instructions.instruction import Instruction
from graphc.targets.target import Target

DEPTH = 2
"""How many products one lane sums."""


def reference(
    acc: npt.NDArray[np.float32], a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """What every instruction of this file computes: acc [lanes], a [2], b [lanes, 2].

    The last bit depends on the order of the two sums, and subnormal numbers may count as zero.
    """
    sums: npt.NDArray[np.float32] = acc + (b[:, 1] * a[1] + b[:, 0] * a[0])
    return sums


def lanes(target: Target) -> int:
    """How many float32 one register of the target holds."""
    return max(target.vector_bits // 32, 4)


def pairs(target: Target) -> Instruction:
    """The best form that the target has."""
    count = lanes(target)
    if count >= 16 and target.has("avx512bf16"):
        return _native(16)
    return _shifted(count)


def is_native(target: Target) -> bool:
    """Whether bfloat16 products are faster than float32 ones, not only their weights smaller."""
    return pairs(target).name.startswith("graphc_pairs_bf16")


def _native(count: int) -> Instruction:
    intrinsic = f"llvm.x86.avx512bf16.dpbf16ps.{count * 32}"
    acc, raw = f"<{count} x float>", f"<{count * 2} x bfloat>"
    words, name = f"<{count} x i32>", f"graphc_pairs_bf16x{count}"
    return Instruction(
        name,
        f"float32x{count}",
        f"""
declare {acc} @{intrinsic}({acc}, {raw}, {raw})
define linkonce_odr {acc} @{name}({acc} %acc, i32 %a, {words} %b) alwaysinline nounwind {{
{_splat(count)}
  %ab = bitcast {words} %as to {raw}
  %bb = bitcast {words} %b to {raw}
  %r = call {acc} @{intrinsic}({acc} %acc, {raw} %ab, {raw} %bb)
  ret {acc} %r
}}
""",
    )


def _shifted(count: int) -> Instruction:
    acc, words = f"<{count} x float>", f"<{count} x i32>"
    name, fma = f"graphc_pairs_shift{count}", f"llvm.fmuladd.v{count}f32"
    return Instruction(
        name,
        f"float32x{count}",
        f"""
declare {acc} @{fma}({acc}, {acc}, {acc})
define linkonce_odr {acc} @{name}({acc} %acc, i32 %a, {words} %b) alwaysinline nounwind {{
{_splat(count)}
  %al = shl {words} %as, splat (i32 16)
  %ah = and {words} %as, splat (i32 -65536)
  %bl = shl {words} %b, splat (i32 16)
  %bh = and {words} %b, splat (i32 -65536)
  %a0 = bitcast {words} %al to {acc}
  %a1 = bitcast {words} %ah to {acc}
  %b0 = bitcast {words} %bl to {acc}
  %b1 = bitcast {words} %bh to {acc}
  %low = call {acc} @{fma}({acc} %a0, {acc} %b0, {acc} %acc)
  %r = call {acc} @{fma}({acc} %a1, {acc} %b1, {acc} %low)
  ret {acc} %r
}}
""",
    )


def _splat(count: int) -> str:
    words = f"<{count} x i32>"
    return f"""  %asi = insertelement {words} poison, i32 %a, i64 0
  %as = shufflevector {words} %asi, {words} poison, <{count} x i32> zeroinitializer"""
