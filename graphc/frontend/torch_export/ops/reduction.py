"""Reductions over axes, softmax, running sums, and the largest k elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from graphc.frontend.onnx.values import KnownValue, Value
from graphc.frontend.torch_export.call import Call, Result, Table

# Above this, picking one largest element after the other is no way to find k of them.
_MOST_PICKS = 64


def _reduce(operator: str) -> Callable[[Call], Result]:
    """Over `dim` (all axes without one), in the result's type."""

    def convert(call: Call) -> Result:
        value = call.cast(call.value("self"), call.dtype)
        return _reduced(call, operator, value)

    return convert


def _reduced(call: Call, operator: str, value: Value) -> Value:
    axes = call.axes("dim", value.rank)
    if not axes:
        return value
    return call.apply(
        operator, [value, call.ints(axes)], keepdims=int(bool(call.get("keepdim", False)))
    )


def _any(call: Call) -> Result:
    whole = call.part("whole").cast(call.cast(call.value("self"), "bool"), "int32")
    return call.cast(_reduced(call.part("most"), "ReduceMax", whole), "bool")


def _all(call: Call) -> Result:
    whole = call.part("whole").cast(call.cast(call.value("self"), "bool"), "int32")
    return call.cast(_reduced(call.part("least"), "ReduceMin", whole), "bool")


def _variance(root: bool) -> Callable[[Call], Result]:
    """sum((x - mean)^2) / (n - correction)."""

    def convert(call: Call) -> Result:
        value = call.value("self")
        axes = call.axes("dim", value.rank)
        correction = call.arguments.get("correction")
        if correction is None:
            correction = 1 if call.get("unbiased", True) else 0
        count = call.context.symbols.product([value.shape[axis] for axis in axes])
        if not isinstance(count, int) and correction:
            raise call.unsupported("a corrected variance over a dynamic dimension is not compiled")
        rows = call.ints(axes)
        mean = call.part("mean").apply("ReduceMean", [value, rows], keepdims=1)
        centred = call.part("centred").apply("Sub", [value, mean])
        square = call.part("square").apply("Mul", [centred, centred])
        keep = int(bool(call.get("keepdim", False)))
        spread = call.part("spread").apply("ReduceMean", [square, rows], keepdims=keep)
        if correction:
            assert isinstance(count, int), count
            factor = call.scalar(count / (count - float(correction)), value.dtype)
            spread = call.part("corrected").apply("Mul", [spread, factor])
        return call.apply("Sqrt", [spread]) if root else spread

    return convert


def _norm(call: Call) -> Result:
    order = call.get("ord", 2)
    kinds: dict[Any, str] = {1: "ReduceL1", 2: "ReduceL2"}
    if order not in kinds:
        raise call.unsupported(f"a norm of order {order} is not compiled")
    return _reduced(call, kinds[order], call.cast(call.value("self"), call.dtype))


def _index(operator: str) -> Callable[[Call], Result]:
    def convert(call: Call) -> Result:
        value = call.value("self")
        if call.arguments.get("dim") is None:
            flat = call.part("flat").reshape(value, [call.context.symbols.product(value.shape)])
            return call.reshape(call.part("at").apply(operator, [flat], axis=0), call.shape)
        keep = int(bool(call.get("keepdim", False)))
        return call.apply(operator, [value], axis=call.axis("dim", value.rank), keepdims=keep)

    return convert


def _extreme(reduce: str, index: str) -> Callable[[Call], Result]:
    """The values and where they are."""

    def convert(call: Call) -> Result:
        value = call.value("self")
        axis, keep = call.axis("dim", value.rank), int(bool(call.get("keepdim", False)))
        best = call.part("value").apply(reduce, [value, call.ints([axis])], keepdims=keep)
        return [best, call.part("index").apply(index, [value], axis=axis, keepdims=keep)]

    return convert


def _softmax(operator: str) -> Callable[[Call], Result]:
    def convert(call: Call) -> Result:
        value = call.cast(call.value("self"), call.dtype)
        return call.apply(operator, [value], axis=call.axis("dim", value.rank))

    return convert


def _cumsum(call: Call) -> Result:
    value = call.cast(call.value("self"), call.dtype)
    axis = call.scalar(call.axis("dim", value.rank), "int64")
    return call.apply("CumSum", [value, axis])


def _top_k(call: Call) -> Result:
    """One largest after the other, each then taken out; of equals the first, as ONNX has it."""
    value, count = call.value("self"), call.fixed("k")
    axis = call.axis("dim", value.rank) if "dim" in call.arguments else value.rank - 1
    extent = value.shape[axis]
    if not isinstance(extent, int) or count > _MOST_PICKS or value.dtype not in _LOWEST:
        raise call.unsupported(
            f"the {count} largest of {extent} {value.dtype} elements: compiled are up to "
            f"{_MOST_PICKS} of a fixed number of floats"
        )
    largest = bool(call.get("largest", True))
    rest = value if largest else call.part("negative").apply("Neg", [value])
    along = [1] * value.rank
    along[axis] = extent
    places = KnownValue(f"{call.name}.places", "int64", np.arange(extent).reshape(along))
    lowest = call.scalar(_LOWEST[value.dtype], value.dtype)
    values, indices = [], []
    for number in range(count):
        step = call.part(f"pick{number}")
        values.append(step.part("value").apply("ReduceMax", [rest, call.ints([axis])], keepdims=1))
        indices.append(step.part("index").apply("ArgMax", [rest], axis=axis, keepdims=1))
        if number + 1 < count:
            taken = step.part("taken").apply("Equal", [indices[-1], places])
            rest = step.part("rest").apply("Where", [taken, lowest, rest])
    joined = call.part("values").apply("Concat", values, axis=axis)
    if not largest:
        joined = call.part("signed").apply("Neg", [joined])
    return [joined, call.part("indices").apply("Concat", indices, axis=axis)]


_LOWEST = {"float32": float("-inf"), "float64": float("-inf"), "float16": float("-inf")}

TABLE: Table = {
    "sum.default": _reduce("ReduceSum"),
    "sum.dim_IntList": _reduce("ReduceSum"),
    "mean.default": _reduce("ReduceMean"),
    "mean.dim": _reduce("ReduceMean"),
    "prod.default": _reduce("ReduceProd"),
    "prod.dim_int": _reduce("ReduceProd"),
    "amax.default": _reduce("ReduceMax"),
    "amin.default": _reduce("ReduceMin"),
    "max.default": _reduce("ReduceMax"),
    "min.default": _reduce("ReduceMin"),
    "logsumexp.default": _reduce("ReduceLogSumExp"),
    "any.default": _any,
    "any.dim": _any,
    "any.dims": _any,
    "all.default": _all,
    "all.dim": _all,
    "all.dims": _all,
    "var.default": _variance(False),
    "var.dim": _variance(False),
    "var.correction": _variance(False),
    "std.default": _variance(True),
    "std.dim": _variance(True),
    "std.correction": _variance(True),
    "linalg_vector_norm.default": _norm,
    "argmax.default": _index("ArgMax"),
    "argmin.default": _index("ArgMin"),
    "max.dim": _extreme("ReduceMax", "ArgMax"),
    "min.dim": _extreme("ReduceMin", "ArgMin"),
    "softmax.int": _softmax("Softmax"),
    "_softmax.default": _softmax("Softmax"),
    "log_softmax.int": _softmax("LogSoftmax"),
    "_log_softmax.default": _softmax("LogSoftmax"),
    "cumsum.default": _cumsum,
    "topk.default": _top_k,
}
