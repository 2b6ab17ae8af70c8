"""One node as a converter sees it: its inputs as values and its attributes with their types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphc.errors import ModelError, UnsupportedError
from graphc.frontend.onnx.values import FLOATS, INTEGERS, Value

NARROW_VALUE = "value narrow"
"""The key among a node's attributes of the narrow type of a tensor attribute (narrow.py)."""


@dataclass(frozen=True)
class Node:
    """`label` is how messages call it; `version` is the operator set of its domain."""

    label: str
    domain: str
    op_type: str
    version: int
    inputs: tuple[Value | None, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]

    def error(self, message: str) -> ModelError:
        return ModelError(f"{self.label}: {message}")

    def unsupported(self, message: str) -> UnsupportedError:
        return UnsupportedError(f"{self.label}: {message}")

    # -- inputs ----------------------------------------------------------------------------

    def input(self, index: int) -> Value:
        value = self.optional(index)
        if value is None:
            raise self.error(f"input {index} is missing")
        return value

    def optional(self, index: int) -> Value | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def all_inputs(self, least: int = 1) -> list[Value]:
        """Every input of a variadic operator."""
        values = [self.input(index) for index in range(len(self.inputs))]
        if len(values) < least:
            raise self.error(f"it has {len(values)} inputs, at least {least} are needed")
        return values

    def same_dtype(self, *values: Value) -> str:
        """The dtype that all of `values` have."""
        names = {value.dtype for value in values}
        if len(names) != 1:
            raise self.error(f"its inputs have different types: {', '.join(sorted(names))}")
        return names.pop()

    def need_float(self, value: Value) -> None:
        if value.dtype not in FLOATS:
            raise self.error(f"it needs a floating-point input, this is {value.dtype}")

    def need_integer(self, value: Value) -> None:
        if value.dtype not in INTEGERS:
            raise self.error(f"it needs an integer input, this is {value.dtype}")

    def need_bool(self, value: Value) -> None:
        if value.dtype != "bool":
            raise self.error(f"it needs a boolean input, this is {value.dtype}")

    def need_number(self, value: Value) -> None:
        if value.dtype == "bool":
            raise self.error("it needs a numeric input, this is bool")

    def need_rank(self, value: Value, least: int, most: int | None = None) -> None:
        if value.rank < least or (most is not None and value.rank > most):
            wanted = f"{least}" if most == least else f"{least} to {most}" if most else f"{least}+"
            raise self.error(f"an input has {value.rank} dimensions, it needs {wanted}")

    # -- attributes ------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        return name in self.attributes

    def integer(self, name: str, default: int | None = None) -> int:
        return int(self._typed(name, int, "an integer", default))

    def number(self, name: str, default: float | None = None) -> float:
        return float(self._typed(name, (float, int), "a number", default))

    def text(self, name: str, default: str | None = None) -> str:
        value = self._typed(name, (bytes, str), "a string", default)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

    def integers(self, name: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        value = self._typed(name, (tuple, list), "a list of integers", default)
        if not all(isinstance(item, int) for item in value):
            raise self.error(f"attribute {name} must be a list of integers")
        return tuple(value)

    def numbers(self, name: str, default: tuple[float, ...] | None = None) -> tuple[float, ...]:
        value = self._typed(name, (tuple, list), "a list of numbers", default)
        if not all(isinstance(item, (int, float)) for item in value):
            raise self.error(f"attribute {name} must be a list of numbers")
        return tuple(float(item) for item in value)

    def array(self, name: str) -> np.ndarray:
        array: np.ndarray = self._typed(name, np.ndarray, "a tensor", None)
        return array

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        value = self.text(name, default)
        if value not in allowed:
            raise self.error(f"attribute {name} is {value!r}, not one of {', '.join(allowed)}")
        return value

    def _typed(self, name: str, kind: Any, wanted: str, default: Any) -> Any:
        value = self.attributes.get(name, default)
        if value is None:
            raise self.error(f"attribute {name} is missing")
        if not isinstance(value, kind):
            raise self.error(f"attribute {name} must be {wanted}")
        return value

    # -- axes ------------------------------------------------------------------------------

    def axis(self, axis: int, rank: int) -> int:
        """The axis counted from 0."""
        if not -rank <= axis < rank:
            raise self.error(f"axis {axis} is out of range for {rank} dimensions")
        return axis % rank

    def axes(self, axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
        """Distinct axes counted from 0."""
        result = tuple(self.axis(axis, rank) for axis in axes)
        if len(set(result)) != len(result):
            raise self.error(f"axes {list(axes)} name an axis twice")
        return result
