"""One call of an ATen operator as a converter sees it: arguments by name, and what it may make.

Where an ATen operator means what an ONNX operator means, converters apply that operator: both
importers then fold, bound and check in one way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from tvm import relax

from graphc.errors import ModelError, UnsupportedError
from graphc.frontend.onnx.apply import made
from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.extents import known
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.operators import REGISTRY
from graphc.frontend.onnx.values import DTYPES, KnownValue, TensorValue, Value, numpy_dtype
from graphc.frontend.torch_export.expressions import Expressions
from graphc.ir import Expr

Result: TypeAlias = "Value | Sequence[Value | None] | None"
Convert: TypeAlias = "Callable[[Call], Result]"
Table: TypeAlias = "Mapping[str, Convert]"
"""ATen operator with its overload, such as "add.Tensor" -> converter."""

_OPSET = 24
_ONNX_TYPES = {name: number for number, name in DTYPES.items()}
# Wider than any axis: torch writes an end of a slice that is meant to be open so.
OPEN = 2**63 - 1


def dtype_name(dtype: torch.dtype) -> str:
    """The name that numpy and Relax have for it."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Call:
    """`arguments` has defaults filled in; `results` are torch's own shapes and types of the results
    (one for each if there are several); `originals` what torch knows of the arguments."""

    context: Context
    expressions: Expressions
    name: str
    label: str
    operator: str
    arguments: Mapping[str, Any]
    originals: Mapping[str, Any]
    result: Any

    def error(self, message: str) -> ModelError:
        return ModelError(f"{self.label}: {message}")

    def unsupported(self, message: str) -> UnsupportedError:
        return UnsupportedError(f"{self.label}: {message}")

    def part(self, name: str) -> Call:
        """The same call making a value on the way to its result."""
        return replace(self, name=f"{self.name}.{name}")

    # -- arguments -------------------------------------------------------------------------

    def value(self, name: str) -> Value:
        """A tensor."""
        value = self.arguments[name]
        if not isinstance(value, (TensorValue, KnownValue)):
            raise self.unsupported(f"its argument {name} is {value!r}, a tensor is compiled")
        return value

    def optional(self, name: str) -> Value | None:
        return None if self.arguments.get(name) is None else self.value(name)

    def get(self, name: str, default: Any = None) -> Any:
        value = self.arguments.get(name)
        return default if value is None else value

    def fixed(self, name: str, default: int | None = None) -> int:
        """A number that depends on nothing."""
        value = self.get(name, default)
        if not isinstance(value, int):
            raise self.unsupported(f"its argument {name} is {value}, a fixed number is compiled")
        return value

    def all_fixed(self, name: str) -> list[int]:
        values = self.get(name, ())
        values = [values] if isinstance(values, int) else list(values)
        if not all(isinstance(value, int) for value in values):
            raise self.unsupported(f"its argument {name} is {values}, fixed numbers are compiled")
        return values

    def axis(self, name: str, rank: int) -> int:
        axis = self.fixed(name)
        if not -max(rank, 1) <= axis < max(rank, 1):
            raise self.error(f"axis {axis} is out of range for {rank} dimensions")
        return axis % max(rank, 1)

    def axes(self, name: str, rank: int) -> list[int]:
        """Axes to reduce: all for None or none."""
        given = self.all_fixed(name)
        return sorted({axis % max(rank, 1) for axis in given}) if given else list(range(rank))

    # -- results ---------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[Expr, ...]:
        """What torch says the result's shape is."""
        return tuple(self.expressions.dim(extent) for extent in self.result.shape)

    @property
    def dtype(self) -> str:
        return dtype_name(self.result.dtype)

    def apply(self, operator: str, inputs: Sequence[Value | None], **attributes: Any) -> Value:
        """The result of a standard ONNX operator."""
        entry = REGISTRY.find("", operator, _OPSET)
        if entry is None:
            raise self.unsupported(f"graphc has no {operator} yet")
        node = Node(self.label, "", operator, _OPSET, tuple(inputs), (self.name,), attributes)
        (value, *_) = made(self.context, entry, node)
        assert value is not None, (self.label, operator)
        return value

    def emit(self, call: relax.Expr, shape: Sequence[Expr] | None = None) -> TensorValue:
        """Binds a Relax expression."""
        return self.context.emit(call, self.name, shape, self.label)

    def expr(self, value: Value) -> relax.Expr:
        return self.context.expr(value)

    # -- values ----------------------------------------------------------------------------

    def ints(self, values: Sequence[Expr]) -> KnownValue:
        """Numbers or dimensions as an int64 vector."""
        return known(values, self.name)

    def scalar(self, number: Any, dtype: str) -> KnownValue:
        """A number or a dimension as a tensor without axes."""
        if isinstance(number, (bool, int, float)):
            if dtype not in ("float16", "bfloat16", "float32", "float64", "bool"):
                number = int(number)
            return KnownValue("", dtype, np.array(number).astype(numpy_dtype(dtype)))
        data = np.empty((), object)
        data[()] = number
        return KnownValue("", dtype, data)

    def operand(self, name: str, dtype: str) -> Value:
        """A tensor or a number, as `dtype`."""
        given = self.arguments[name]
        if isinstance(given, (TensorValue, KnownValue)):
            return self.cast(given, dtype)
        return self.scalar(given, dtype)

    def cast(self, value: Value, dtype: str) -> Value:
        if value.dtype == dtype:
            return value
        if dtype not in _ONNX_TYPES:
            raise self.unsupported(f"its type {dtype} is not compiled")
        return self.part(f"as_{dtype}").apply("Cast", [value], to=_ONNX_TYPES[dtype])

    def reshape(self, value: Value, shape: Sequence[Expr]) -> Value:
        return self.apply("Reshape", [value, self.ints(shape)], allowzero=1)

    def expand(self, value: Value, shape: Sequence[Expr]) -> Value:
        return self.apply("Expand", [value, self.ints(shape)])

    def transpose(self, value: Value, order: Sequence[int]) -> Value:
        if list(order) == list(range(value.rank)):
            return value
        return self.apply("Transpose", [value], perm=tuple(order))

    def slice(self, value: Value, axis: int, start: Expr, end: Expr, step: int = 1) -> Value:
        parts = [self.ints([number]) for number in (start, end, axis, step)]
        return self.apply("Slice", [value, *parts])
