"""Constant, Identity and what is the identity in inference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.node import NARROW_VALUE, Node
from graphc.frontend.onnx.table import Operator, Result, Table
from graphc.frontend.onnx.values import KnownValue, Value


def _constant(context: Context, node: Node) -> Result:
    kinds = {"value", "value_int", "value_float", "value_ints", "value_floats"}
    given = kinds & set(node.attributes)
    others = set(node.attributes) - given - {NARROW_VALUE}
    if len(given) != 1 or others:
        names = ", ".join(sorted(given | others)) or "none"
        raise node.unsupported(f"a constant with one value is compiled, not with {names}")
    kind = given.pop()
    if kind == "value":
        data = node.array("value")
    elif kind == "value_int":
        data = np.array(node.integer(kind), "int64")
    elif kind == "value_float":
        data = np.array(node.number(kind), "float32")
    elif kind == "value_ints":
        data = np.array(node.integers(kind), "int64")
    else:
        data = np.array(node.numbers(kind), "float32")
    narrow = node.text(NARROW_VALUE, "")
    return KnownValue(node.outputs[0], str(data.dtype), data, narrow)


def _identity(context: Context, node: Node) -> Result:
    return renamed(node.input(0), node.outputs[0])


def renamed(value: Value, name: str) -> Value:
    """The same value under another name."""
    if isinstance(value, KnownValue):
        return replace(value, name=value.name or name)
    return value


def _has_element(context: Context, node: Node) -> Result:
    """Whether an optional value is there; only tensors are compiled, so it is seen now."""
    there = np.array(node.optional(0) is not None)
    return KnownValue(node.outputs[0], "bool", there)


def _dropout(context: Context, node: Node) -> Result:
    value = node.input(0)
    training = node.optional(2)
    if training is not None and not (
        isinstance(training, KnownValue) and not training.symbolic and not training.data.any()
    ):
        raise node.unsupported("dropout in training mode: export the model for inference")
    if len(node.outputs) < 2 or not node.outputs[1]:
        return value
    dtype = "bool" if node.version >= 10 else value.dtype
    ones = KnownValue(node.outputs[1], dtype, np.array(1, dtype))
    return [value, context.broadcast_to(ones, value.shape, node.outputs[1])]


def _fold_identity(
    context: Context, node: Node, arrays: Sequence[np.ndarray | None]
) -> KnownValue | None:
    value = node.input(0)
    assert isinstance(value, KnownValue), value
    return value


TABLE: Table = {
    ("", "Constant", 1): Operator(_constant),
    ("", "Identity", 1): Operator(_identity, fold=_fold_identity, moves="all"),
    ("", "OptionalHasElement", 18): Operator(_has_element),
    ("", "OptionalGetElement", 18): Operator(_identity, moves="all"),
    ("", "Dropout", 7): Operator(_dropout),
}
