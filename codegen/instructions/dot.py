"""Four products at once: acc[i] += sum over j < 4 of a[j] * b[i, j], exact in int32.

`a` is four unsigned bytes in an int32, the same for all lanes; `b` four signed bytes for each lane.

    AVX512-VNNI, AVX-VNNI   vpdpbusd                one instruction, no saturation
    AVX512-BW, AVX2         2 vpmaddwd and 2 adds   bytes are widened to 16 bits first: vpmaddubsw
                                                    would saturate at 255 * 127 * 2 > 2^15
    otherwise               4 widening multiplications, for LLVM to map
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from graphc.codegen.instructions.instruction import Instruction
from graphc.targets.target import Target

DEPTH: Final = 4
"""How many products one lane sums."""


def reference(
    acc: npt.NDArray[np.int32], a: npt.NDArray[np.uint8], b: npt.NDArray[np.int8]
) -> npt.NDArray[np.int32]:
    """What every instruction of this file computes: acc [lanes], a [4], b [lanes, 4]."""
    sums: npt.NDArray[np.int32] = acc + b.astype(np.int32) @ a.astype(np.int32)
    return sums


def lanes(target: Target) -> int:
    """How many int32 one register of the target holds."""
    return max(target.vector_bits // 32, 4)


def dot(target: Target) -> Instruction:
    """The best form that the target has."""
    count = lanes(target)
    if count >= 16 and target.has("avx512vnni"):
        return _vnni(16)
    if count >= 8 and (
        target.has("avxvnni") or (target.has("avx512vnni") and target.has("avx512vl"))
    ):
        return _vnni(8)
    if count >= 16 and target.has("avx512bw"):
        return _widened(16, "llvm.x86.avx512.pmaddw.d.512")
    if count >= 8 and target.has("avx2"):
        return _widened(8, "llvm.x86.avx2.pmadd.wd")
    return _plain(count)


def is_widened(target: Target) -> bool:
    """Whether the target widens bytes first, which costs registers."""
    return not dot(target).name.startswith("graphc_dot_vnni")


def _vnni(count: int) -> Instruction:
    intrinsic = f"llvm.x86.avx512.vpdpbusd.{count * 32}"
    acc, raw = f"<{count} x i32>", f"<{count * 4} x i8>"
    name = f"graphc_dot_vnni{count}"
    return Instruction(
        name,
        f"int32x{count}",
        f"""
declare {acc} @{intrinsic}({acc}, {raw}, {raw})
define linkonce_odr {acc} @{name}({acc} %acc, i32 %a, {acc} %b) alwaysinline nounwind {{
{_splat(count)}
  %ab = bitcast {acc} %as to {raw}
  %bb = bitcast {acc} %b to {raw}
  %r = call {acc} @{intrinsic}({acc} %acc, {raw} %ab, {raw} %bb)
  ret {acc} %r
}}
""",
    )


def _widened(count: int, intrinsic: str) -> Instruction:
    """Even and odd bytes as 16-bit numbers: two multiply-adds of pairs."""
    acc, half = f"<{count} x i32>", f"<{count * 2} x i16>"
    name = f"graphc_dot_wide{count}"
    return Instruction(
        name,
        f"int32x{count}",
        f"""
declare {acc} @{intrinsic}({half}, {half})
define linkonce_odr {acc} @{name}({acc} %acc, i32 %a, {acc} %b) alwaysinline nounwind {{
  %a0 = and i32 %a, 16711935
  %a1 = lshr i32 %a, 8
  %a2 = and i32 %a1, 16711935
{_splat(count, "%a0", "ae")}
{_splat(count, "%a2", "ao")}
  %aew = bitcast {acc} %ae to {half}
  %aow = bitcast {acc} %ao to {half}
  %bw = bitcast {acc} %b to {half}
  %b8 = shl {half} %bw, splat (i16 8)
  %be = ashr {half} %b8, splat (i16 8)
  %bo = ashr {half} %bw, splat (i16 8)
  %even = call {acc} @{intrinsic}({half} %aew, {half} %be)
  %odd = call {acc} @{intrinsic}({half} %aow, {half} %bo)
  %sum = add {acc} %even, %odd
  %r = add {acc} %acc, %sum
  ret {acc} %r
}}
""",
    )


def _plain(count: int) -> Instruction:
    acc, name = f"<{count} x i32>", f"graphc_dot_plain{count}"
    lines, last = [], "%acc"
    for j in range(DEPTH):
        up = 24 - 8 * j
        lines.append(
            f"""  %a{j}l = shl i32 %a, {up}
  %a{j} = lshr i32 %a{j}l, 24
{_splat(count, f"%a{j}", f"as{j}")}
  %b{j}l = shl {acc} %b, splat (i32 {up})
  %b{j} = ashr {acc} %b{j}l, splat (i32 24)
  %p{j} = mul {acc} %as{j}, %b{j}
  %s{j} = add {acc} {last}, %p{j}"""
        )
        last = f"%s{j}"
    body = "\n".join(lines)
    return Instruction(
        name,
        f"int32x{count}",
        f"""
define linkonce_odr {acc} @{name}({acc} %acc, i32 %a, {acc} %b) alwaysinline nounwind {{
{body}
  ret {acc} {last}
}}
""",
    )


def _splat(count: int, scalar: str = "%a", name: str = "as") -> str:
    acc = f"<{count} x i32>"
    return f"""  %{name}i = insertelement {acc} poison, i32 {scalar}, i64 0
  %{name} = shufflevector {acc} %{name}i, {acc} poison, <{count} x i32> zeroinitializer"""
