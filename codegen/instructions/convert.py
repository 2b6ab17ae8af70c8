"""Conversions and reductions that TVM has no vector word for, as LLVM text.

halves(w)        2 float16 in each int32  ----->  float32, twice as many lanes
round_bytes(x)   float32                  ----->  int8, rounded to even, four in each int32
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from graphc.codegen.instructions.instruction import Instruction


def halves_reference(words: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """What `halves` computes."""
    return words.view(np.float16).astype(np.float32)


def halves(lanes: int) -> Instruction:
    """From `lanes` / 2 int32 to `lanes` float32."""
    words, half, wide = f"<{lanes // 2} x i32>", f"<{lanes} x half>", f"<{lanes} x float>"
    name = f"graphc_halves{lanes}"
    text = f"""
define linkonce_odr {wide} @{name}({words} %w) alwaysinline nounwind {{
  %h = bitcast {words} %w to {half}
  %r = fpext {half} %h to {wide}
  ret {wide} %r
}}
"""
    return Instruction(name, f"float32x{lanes}", text)


def round_bytes_reference(x: npt.NDArray[np.float32]) -> npt.NDArray[np.int32]:
    """What `round_bytes` computes, for values in [-128, 127]."""
    return np.rint(x).astype(np.int8).view(np.int32)


def round_bytes(lanes: int) -> Instruction:
    """From `lanes` float32 in [-128, 127] to `lanes` / 4 int32; NaN becomes anything."""
    wide, whole, raw = f"<{lanes} x float>", f"<{lanes} x i32>", f"<{lanes} x i8>"
    words, name = f"<{lanes // 4} x i32>", f"graphc_round_bytes{lanes}"
    text = f"""
declare {wide} @llvm.rint.v{lanes}f32({wide})
define linkonce_odr {words} @{name}({wide} %x) alwaysinline nounwind {{
  %n = call {wide} @llvm.rint.v{lanes}f32({wide} %x)
  %p = fptosi {wide} %n to {whole}
  %i = freeze {whole} %p
  %b = trunc {whole} %i to {raw}
  %r = bitcast {raw} %b to {words}
  ret {words} %r
}}
"""
    result = "int32" if lanes == 4 else f"int32x{lanes // 4}"
    if lanes == 4:
        text = text.replace(f"{words} @", "i32 @").replace(f"to {words}", "to i32")
        text = text.replace(f"ret {words}", "ret i32")
    return Instruction(name, result, text)


def largest(lanes: int) -> Instruction:
    """The largest magnitude among the lanes; NaN may be passed over."""
    wide, name = f"<{lanes} x float>", f"graphc_largest{lanes}"
    text = f"""
declare {wide} @llvm.fabs.v{lanes}f32({wide})
declare float @llvm.vector.reduce.fmax.v{lanes}f32({wide})
define linkonce_odr float @{name}({wide} %x) alwaysinline nounwind {{
  %a = call {wide} @llvm.fabs.v{lanes}f32({wide} %x)
  %r = call nnan float @llvm.vector.reduce.fmax.v{lanes}f32({wide} %a)
  ret float %r
}}
"""
    return Instruction(name, "float32", text)


def total(lanes: int) -> Instruction:
    """The sum of the lanes, by halves."""
    wide, name = f"<{lanes} x float>", f"graphc_total{lanes}"
    text = f"""
declare float @llvm.vector.reduce.fadd.v{lanes}f32(float, {wide})
define linkonce_odr float @{name}({wide} %x) alwaysinline nounwind {{
  %r = call reassoc float @llvm.vector.reduce.fadd.v{lanes}f32(float 0.0, {wide} %x)
  ret float %r
}}
"""
    return Instruction(name, "float32", text)
