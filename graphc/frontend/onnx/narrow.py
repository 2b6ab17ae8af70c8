"""Element types below 8 bits and 8-bit floats: held one to a byte, read and written by casts.

An int4 or uint2 is held as an int8 or uint8 of the same value; a float8 or float4 as a uint8 with
its code in the low bits. Such a value may be moved, cast, quantised and dequantised; arithmetic on
it is refused, as ONNX has none. Large 4-bit weights stay packed two to a byte in the file, and are
unpacked by whatever reads them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto
from tvm import te, tirx


@dataclass(frozen=True)
class Narrow:
    """One type; `carrier` is the type that holds it, one value to an element."""

    name: str
    bits: int
    carrier: str

    @property
    def is_float(self) -> bool:
        return self.name.startswith("float")

    @property
    def numpy(self) -> np.dtype:
        """Its numpy type, one value to a byte."""
        dtype: np.dtype = np.dtype(getattr(ml_dtypes, self.name))
        return dtype

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest value of an integer type."""
        info = ml_dtypes.iinfo(self.numpy)
        return int(info.min), int(info.max)


TYPES: dict[int, Narrow] = {
    TensorProto.INT4: Narrow("int4", 4, "int8"),
    TensorProto.UINT4: Narrow("uint4", 4, "uint8"),
    TensorProto.INT2: Narrow("int2", 2, "int8"),
    TensorProto.UINT2: Narrow("uint2", 2, "uint8"),
    TensorProto.FLOAT8E4M3FN: Narrow("float8_e4m3fn", 8, "uint8"),
    TensorProto.FLOAT8E4M3FNUZ: Narrow("float8_e4m3fnuz", 8, "uint8"),
    TensorProto.FLOAT8E5M2: Narrow("float8_e5m2", 8, "uint8"),
    TensorProto.FLOAT8E5M2FNUZ: Narrow("float8_e5m2fnuz", 8, "uint8"),
    TensorProto.FLOAT8E8M0: Narrow("float8_e8m0fnu", 8, "uint8"),
    TensorProto.FLOAT4E2M1: Narrow("float4_e2m1fn", 4, "uint8"),
}
"""The narrow types by their ONNX number."""

BY_NAME: dict[str, Narrow] = {narrow.name: narrow for narrow in TYPES.values()}


@dataclass(frozen=True)
class _Format:
    """A small float: bits of the mantissa, exponent bias, and the codes with a meaning."""

    mantissa: int
    bias: int
    largest: int  # the code of the largest finite value
    overflow: int  # the code for what is larger, when nothing saturates
    nan: int
    infinity: int | None = None
    negative_zero: bool = True
    sign: int = 0x80


_FORMATS = {
    "float8_e4m3fn": _Format(3, 7, 0x7E, 0x7F, 0x7F),
    "float8_e4m3fnuz": _Format(3, 8, 0x7F, 0x80, 0x80, negative_zero=False),
    "float8_e5m2": _Format(2, 15, 0x7B, 0x7C, 0x7E, infinity=0x7C),
    "float8_e5m2fnuz": _Format(2, 16, 0x7F, 0x80, 0x80, negative_zero=False),
    # No infinity and no NaN: what is not a number becomes -0, as ml_dtypes has it.
    "float4_e2m1fn": _Format(1, 1, 0x7, 0x7, 0x8, sign=0x8),
}


def unpack(data: np.ndarray, narrow: Narrow, count: int) -> np.ndarray:
    """`count` values, one to an element of the carrier, from bytes with the first value lowest."""
    each = 8 // narrow.bits
    if each == 1:
        return data.view(narrow.carrier)
    mask = (1 << narrow.bits) - 1
    parts = [(data >> (narrow.bits * place)) & mask for place in range(each)]
    flat = np.stack(parts, axis=-1).reshape(-1)[:count]
    if narrow.carrier == "uint8":
        return flat
    half = 1 << (narrow.bits - 1)
    return ((flat ^ half).astype("int8") - half).astype("int8")


def pack(data: np.ndarray) -> np.ndarray:
    """Values of 4 bits, two to a byte with the first in the low half."""
    flat = np.ascontiguousarray(data).reshape(-1).view("uint8") & 15
    if flat.size % 2:
        flat = np.append(flat, np.uint8(0))
    return np.ascontiguousarray(flat[0::2] | (flat[1::2] << 4))


def unpacked(shape: Sequence[int], narrow: Narrow) -> Any:
    """The TE computation that reads packed 4-bit values as a tensor of `shape`."""

    def compute(packed: te.Tensor) -> te.Tensor:
        def element(*at: Any) -> Any:
            flat: Any = tirx.const(0, "int64")
            for place, extent in zip(at, shape, strict=True):
                flat = flat * tirx.const(extent, "int64") + place
            byte = packed[flat // 2].astype("int32")
            code = (byte >> ((flat % 2) * 4).astype("int32")) & tirx.const(15, "int32")
            if narrow.carrier == "int8":
                code = (code ^ tirx.const(8, "int32")) - tirx.const(8, "int32")
            return code.astype(narrow.carrier)

        return te.compute(list(shape), element, name="unpack")

    return compute


# -- expressions over single elements --------------------------------------------------------


def decode(code: Any, name: str) -> Any:
    """The float32 that a uint8 code stands for."""
    bits = code.astype("uint32")
    if name == "float8_e8m0fnu":
        value = tirx.Select(bits == _u32(0), _u32(0x00400000), bits << _u32(23))
        return _as_float(tirx.Select(bits == _u32(255), _u32(0x7FC00000), value))
    form = _FORMATS[name]
    magnitude = bits & _u32(form.sign - 1)
    smallest_normal = 1 << form.mantissa
    exponent = _u32((127 - form.bias) << 23)
    normal = _as_float((magnitude << _u32(23 - form.mantissa)) + exponent)
    tiny = magnitude.astype("float32") * _f32(math.ldexp(1, 1 - form.bias - form.mantissa))
    value = tirx.Select(magnitude < _u32(smallest_normal), tiny, normal)
    if form.infinity is not None:
        value = tirx.Select(magnitude == _u32(form.infinity), _f32(math.inf), value)
        value = tirx.Select(magnitude > _u32(form.infinity), _f32(math.nan), value)
    elif form.nan == 0x7F:
        value = tirx.Select(magnitude == _u32(form.nan), _f32(math.nan), value)
    negative = (bits & _u32(form.sign)) != _u32(0)
    value = tirx.Select(negative, -value, value)
    if not form.negative_zero:
        value = tirx.Select(bits == _u32(form.nan), _f32(math.nan), value)
    return value


def encode(x: Any, name: str, saturate: bool, round_mode: str = "up") -> Any:
    """The uint8 code of a float32: to the nearest, ties to even (float8_e8m0fnu: `round_mode`)."""
    bits = _as_bits(x)
    if name == "float8_e8m0fnu":
        return _encode_exponent(bits, saturate, round_mode)
    form = _FORMATS[name]
    magnitude = bits & _u32(0x7FFFFFFF)
    shift = 23 - form.mantissa
    odd = (magnitude >> _u32(shift)) & _u32(1)
    rounded = (magnitude + _u32((1 << (shift - 1)) - 1) + odd) >> _u32(shift)
    normal = rounded - _u32((127 - form.bias) << form.mantissa)
    # Adding a power of two whose last place is the smallest value rounds to a multiple of it.
    magic = math.ldexp(1, 24 - form.bias - form.mantissa)
    tiny = _as_bits(_as_float(magnitude) + _f32(magic)) - _as_bits(_f32(magic))
    smallest_normal = _bits_of(math.ldexp(1, 1 - form.bias))
    code = tirx.Select(magnitude < _u32(smallest_normal), tiny, normal)
    # Anything at least twice the largest value is too large, whatever `normal` wrapped to.
    huge = magnitude >= _u32(_bits_of(_largest(form) * 2))
    above = tirx.any(huge, code > _u32(form.largest))
    code = tirx.Select(above, _u32(form.largest if saturate else form.overflow), code)
    sign = tirx.Select((bits >> _u32(31)) != _u32(0), _u32(form.sign), _u32(0))
    signed = code | sign
    if not form.negative_zero:
        signed = tirx.Select(code == _u32(0), code, signed)
    nan = magnitude > _u32(0x7F800000)
    signed_nan = form.sign == 0x80 and form.negative_zero
    wrong = _u32(form.nan) | sign if signed_nan else _u32(form.nan)
    return tirx.Select(nan, wrong, signed).astype("uint8")


def _encode_exponent(bits: Any, saturate: bool, round_mode: str) -> Any:
    """float8_e8m0fnu keeps the exponent; sign and, rounded up, down or to nearest, the rest go."""
    exponent = (bits >> _u32(23)) & _u32(0xFF)
    fraction = bits & _u32(0x7FFFFF)
    if round_mode == "up":
        grows = fraction > _u32(0)
    elif round_mode == "nearest":
        half = _u32(0x400000)
        grows = tirx.any(fraction > half, tirx.all(fraction == half, exponent > _u32(0)))
    else:
        grows = tirx.const(False, "bool")
    limit = 0xFE if saturate else 0xFF
    grows = tirx.all(grows, exponent < _u32(limit))
    return tirx.Select(grows, exponent + _u32(1), exponent).astype("uint8")


def wrap(x: Any, narrow: Narrow) -> Any:
    """The low bits of an int32, as a value of an integer type."""
    low = x & tirx.const((1 << narrow.bits) - 1, "int32")
    if narrow.carrier == "int8":
        half = tirx.const(1 << (narrow.bits - 1), "int32")
        low = (low ^ half) - half
    return low.astype(narrow.carrier)


def _largest(form: _Format) -> float:
    exponent = form.largest >> form.mantissa
    fraction = form.largest & ((1 << form.mantissa) - 1)
    return math.ldexp((1 << form.mantissa) + fraction, exponent - form.bias - form.mantissa)


def _bits_of(value: float) -> int:
    return int(np.float32(value).view("uint32"))


def _as_bits(x: Any) -> Any:
    return tirx.reinterpret("uint32", x)


def _as_float(x: Any) -> Any:
    return tirx.reinterpret("float32", x)


def _u32(value: int) -> Any:
    return tirx.const(value, "uint32")


def _f32(value: float) -> Any:
    return tirx.const(value, "float32")
