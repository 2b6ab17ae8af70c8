"""Applies an operator to a node: folds what is known, converts the rest, bounds both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from graphc.frontend.onnx.context import FOLD_LIMIT, Context
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.table import Operator
from graphc.frontend.onnx.values import INTEGERS, Interval, KnownValue, TensorValue, Value, settle


def made(context: Context, operator: Operator, node: Node) -> list[Value | None]:
    """The results of a node: folded where its inputs are known and small, else converted."""
    narrow = _narrow(operator, node)
    folded = _fold(context, operator, node)
    if folded is not None:
        return [replace(folded, narrow=narrow) if narrow else folded]
    converted = operator.convert(context, node)
    results = converted if isinstance(converted, (list, tuple)) else [converted]
    values: list[Value | None] = []
    for index, result in enumerate(results):
        name = node.outputs[index] if index < len(node.outputs) else ""
        if result is None or isinstance(result, KnownValue):
            values.append(replace(result, narrow=narrow) if result and narrow else result)
            continue
        if not isinstance(result, TensorValue):
            result = context.emit(result, name, where=node.label)
        value = _bounded(context, operator, node, result)
        values.append(replace(value, narrow=narrow) if narrow else value)
    return values


def _fold(context: Context, operator: Operator, node: Node) -> KnownValue | None:
    if operator.fold is None or len(node.outputs) != 1:
        return None
    arrays: list[np.ndarray | None] = []
    size = 0
    for value in node.inputs:
        if isinstance(value, TensorValue):
            return None
        arrays.append(None if value is None else value.data)
        size += 0 if value is None else value.data.size
    if size > FOLD_LIMIT:
        return None
    result = operator.fold(context, node, arrays)
    if isinstance(result, KnownValue):
        data, dtype = result.data, result.dtype
    elif result is None:
        return None
    else:
        data, dtype = result, _dtype_of(result, node.inputs)
    if data.size > FOLD_LIMIT:
        return None
    narrow = result.narrow if isinstance(result, KnownValue) else ""
    return KnownValue(node.outputs[0], dtype, settle(data, dtype), narrow)


def _bounded(context: Context, operator: Operator, node: Node, value: TensorValue) -> TensorValue:
    """The value with what is known of its elements."""
    if value.dtype not in INTEGERS:
        return value
    first = node.inputs[0] if node.inputs else None
    interval, source = value.interval, value.source
    if operator.interval is not None:
        interval = operator.interval(context, node)
    if operator.moves and first is not None:
        known = context.interval(first)
        if known is not None:
            reached = known.reached and operator.moves == "all"
            interval = Interval(known.low, known.high, reached)
        source = first.source if isinstance(first, TensorValue) else ""
    if interval is value.interval and source == value.source:
        return value
    return replace(value, interval=interval, source=source)


def _narrow(operator: Operator, node: Node) -> str:
    """The narrow type that the results have since the inputs have it, "" if there is none."""
    found = {value.narrow for value in node.inputs if value is not None} - {""}
    if not found or operator.narrow == "reads":
        return ""
    first = node.inputs[0]
    if not (operator.moves or operator.narrow == "carries") or first is None or not first.narrow:
        raise node.unsupported(
            f"it computes with {', '.join(sorted(found))}: cast to a wider type before it"
        )
    if len(found) > 1:
        raise node.error(f"its inputs have different types: {', '.join(sorted(found))}")
    return first.narrow


def _dtype_of(array: np.ndarray, inputs: Sequence[Value | None]) -> str:
    """A symbolic result has the type of the numbers that it came from."""
    if array.dtype != object:
        return str(array.dtype)
    return next(value.dtype for value in inputs if value is not None and value.dtype != "bool")
