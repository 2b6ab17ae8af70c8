"""What an ONNX value is while it is imported: known now, perhaps symbolically, or at run time."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias

import ml_dtypes
import numpy as np
from onnx import TensorProto
from tvm import relax, tirx

from graphc.ir import Expr

DTYPES: dict[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.DOUBLE: "float64",
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.INT8: "int8",
    TensorProto.INT16: "int16",
    TensorProto.INT32: "int32",
    TensorProto.INT64: "int64",
    TensorProto.UINT8: "uint8",
    TensorProto.UINT16: "uint16",
    TensorProto.UINT32: "uint32",
    TensorProto.UINT64: "uint64",
    TensorProto.BOOL: "bool",
}
"""The element types that graphc compiles, by their ONNX number."""

FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
INTEGERS = frozenset(name for name in DTYPES.values() if name not in FLOATS and name != "bool")


def numpy_dtype(dtype: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)


def dtype_name(elem_type: int) -> str:
    """The name of an ONNX element type, for messages."""
    try:
        return str(TensorProto.DataType.Name(elem_type)).lower()
    except ValueError:
        return f"number {elem_type}"


@dataclass(frozen=True)
class Interval:
    """Bounds of an integer tensor's elements, both included.

    `reached`: some element takes the value `high`, whatever the inputs are, so that an index
    above a table's end is the model's fault and not the input's. `parts` has one interval for
    each position along the last axis, where they are known apart (GatherND reads such indices).
    """

    low: Expr
    high: Expr
    reached: bool = False
    parts: tuple[Interval, ...] = ()


@dataclass(frozen=True)
class TensorValue:
    """A value that exists at run time.

    `source` names the graph input whose integers these are, moved or cast but unchanged. `narrow`
    names the type of fewer bits, or of 8-bit floats, that `dtype` holds (narrow.py).
    """

    name: str
    dtype: str
    shape: tuple[Expr, ...]
    var: relax.Expr
    interval: Interval | None = None
    source: str = ""
    narrow: str = ""

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass(frozen=True)
class Ratio:
    """An exact quotient of dimensions, from detours such as Cast -> Div -> Floor -> Cast."""

    numerator: Expr
    denominator: Expr


Element: TypeAlias = "Expr | Ratio | float"


@dataclass(frozen=True)
class KnownValue:
    """A value known while importing.

    `data` has the dtype itself for numbers (weights among them, perhaps memory-mapped) and
    dtype object for small arrays in which an element depends on the dimensions.
    """

    name: str
    dtype: str
    data: np.ndarray = field(repr=False)
    narrow: str = ""

    @property
    def shape(self) -> tuple[Expr, ...]:
        return tuple(self.data.shape)

    @property
    def rank(self) -> int:
        return int(self.data.ndim)

    @property
    def symbolic(self) -> bool:
        return bool(self.data.dtype == object)


Value: TypeAlias = "TensorValue | KnownValue"


def settle(array: np.ndarray, dtype: str) -> np.ndarray:
    """An object array becomes a plain one when no element of it is symbolic any more."""
    if array.dtype != object:
        return array
    for element in array.flat:
        if isinstance(element, (Ratio, tirx.Expr)):
            return array
    if dtype in INTEGERS:
        limits = np.iinfo(numpy_dtype(dtype))
        for element in array.flat:
            if not limits.min <= element <= limits.max:
                raise OverflowError(f"{element} does not fit in {dtype}")
    plain = [float(e) if isinstance(e, Fraction) else e for e in array.flat]
    return np.array(plain, dtype=numpy_dtype(dtype)).reshape(array.shape)
