"""Four products at once: acc[i] += sum over j < 4 of w[i, j] * x[j], exact in int32.

`w` are four unsigned codes for each lane, `x` four signed bytes in an int32, the same for all
lanes: codes of a weight times quantised activations (dot.py has the signs the other way round).

    AVX512-VNNI, AVX-VNNI   vpdpbusd                 one instruction, no saturation
    AVX512-BW, AVX2         vpmaddubsw, vpmaddwd     codes of at most 7 bits: 127 * 127 * 2 < 2^15
    ARM i8mm                usdot
    ARM dotprod             sdot                     codes of at most 7 bits are signed bytes, too
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
    acc: npt.NDArray[np.int32], w: npt.NDArray[np.uint8], x: npt.NDArray[np.int8]
) -> npt.NDArray[np.int32]:
    """What every instruction of this file computes: acc [lanes], w [lanes, 4], x [4]."""
    sums: npt.NDArray[np.int32] = acc + w.astype(np.int32) @ x.astype(np.int32)
    return sums


def dot_codes(target: Target, lanes: int, bits: int) -> Instruction:
    """The best form that the target has for codes of so many bits."""
    if lanes == 16 and target.has("avx512vnni"):
        return _vnni(16)
    if lanes == 8 and (target.has("avxvnni") or target.has("avx512vnni")):
        return _vnni(8)
    if bits <= 7 and lanes == 16 and target.has("avx512bw"):
        return _pairs(16, "llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512")
    if bits <= 7 and lanes == 8 and target.has("avx2"):
        return _pairs(8, "llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd")
    if lanes == 4 and target.has("i8mm"):
        return _arm("usdot")
    if bits <= 7 and lanes == 4 and target.has("dotprod"):
        return _arm("sdot")
    return _plain(lanes)


def _arm(name: str) -> Instruction:
    intrinsic = f"llvm.aarch64.neon.{name}.v4i32.v16i8"
    text = f"""
declare <4 x i32> @{intrinsic}(<4 x i32>, <16 x i8>, <16 x i8>)
define linkonce_odr <4 x i32> @graphc_dot_codes_{name}(<4 x i32> %acc, <4 x i32> %w, i32 %x)
    alwaysinline nounwind {{
{_splat(4)}
  %wb = bitcast <4 x i32> %w to <16 x i8>
  %xb = bitcast <4 x i32> %xs to <16 x i8>
  %r = call <4 x i32> @{intrinsic}(<4 x i32> %acc, <16 x i8> %wb, <16 x i8> %xb)
  ret <4 x i32> %r
}}
"""
    return Instruction(f"graphc_dot_codes_{name}", "int32x4", text)


def _vnni(lanes: int) -> Instruction:
    intrinsic = f"llvm.x86.avx512.vpdpbusd.{lanes * 32}"
    acc, raw = f"<{lanes} x i32>", f"<{lanes * 4} x i8>"
    name = f"graphc_dot_codes_vnni{lanes}"
    text = f"""
declare {acc} @{intrinsic}({acc}, {raw}, {raw})
define linkonce_odr {acc} @{name}({acc} %acc, {acc} %w, i32 %x) alwaysinline nounwind {{
{_splat(lanes)}
  %wb = bitcast {acc} %w to {raw}
  %xb = bitcast {acc} %xs to {raw}
  %r = call {acc} @{intrinsic}({acc} %acc, {raw} %wb, {raw} %xb)
  ret {acc} %r
}}
"""
    return Instruction(name, f"int32x{lanes}", text)


def _pairs(lanes: int, bytes_: str, words: str) -> Instruction:
    acc, raw, half = f"<{lanes} x i32>", f"<{lanes * 4} x i8>", f"<{lanes * 2} x i16>"
    name = f"graphc_dot_codes_pairs{lanes}"
    text = f"""
declare {half} @{bytes_}({raw}, {raw})
declare {acc} @{words}({half}, {half})
define linkonce_odr {acc} @{name}({acc} %acc, {acc} %w, i32 %x) alwaysinline nounwind {{
{_splat(lanes)}
  %wb = bitcast {acc} %w to {raw}
  %xb = bitcast {acc} %xs to {raw}
  %pairs = call {half} @{bytes_}({raw} %wb, {raw} %xb)
  %fours = call {acc} @{words}({half} %pairs, {half} splat (i16 1))
  %r = add {acc} %acc, %fours
  ret {acc} %r
}}
"""
    return Instruction(name, f"int32x{lanes}", text)


def _plain(lanes: int) -> Instruction:
    acc, name = f"<{lanes} x i32>", f"graphc_dot_codes_plain{lanes}"
    lines, last = [_splat(lanes)], "%acc"
    for j in range(DEPTH):
        up = 24 - 8 * j
        lines.append(
            f"""  %w{j}l = shl {acc} %w, splat (i32 {up})
  %w{j} = lshr {acc} %w{j}l, splat (i32 24)
  %x{j}l = shl {acc} %xs, splat (i32 {up})
  %x{j} = ashr {acc} %x{j}l, splat (i32 24)
  %p{j} = mul {acc} %w{j}, %x{j}
  %s{j} = add {acc} {last}, %p{j}"""
        )
        last = f"%s{j}"
    body = "\n".join(lines)
    text = f"""
define linkonce_odr {acc} @{name}({acc} %acc, {acc} %w, i32 %x) alwaysinline nounwind {{
{body}
  ret {acc} {last}
}}
"""
    return Instruction(name, f"int32x{lanes}", text)


def _splat(lanes: int) -> str:
    acc = f"<{lanes} x i32>"
    return f"""  %xi = insertelement {acc} poison, i32 %x, i64 0
  %xs = shufflevector {acc} %xi, {acc} poison, <{lanes} x i32> zeroinitializer"""
