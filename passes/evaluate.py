"""Relax operators on numpy arrays: what constant folding can compute while compiling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from tvm import relax, sym

from graphc.passes.node import Node

_ANALYZER = sym.Analyzer()

Array: TypeAlias = "np.ndarray[Any, Any]"


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy type of a Relax dtype, bfloat16 and the like through ml_dtypes."""
    return np.dtype(getattr(ml_dtypes, name, name))


def integers(arg: relax.Expr) -> list[int] | None:
    """A tuple or shape argument of an operator as ints, None if something in it is symbolic."""
    fields = list(arg.values if isinstance(arg, relax.ShapeExpr) else arg.fields)
    values = [
        getattr(field if hasattr(field, "value") else _ANALYZER.simplify(field), "value", None)
        for field in fields
    ]
    found = [value for value in values if isinstance(value, int)]
    return found if len(found) == len(values) else None


def can_evaluate(node: Node) -> bool:
    """Whether `evaluate` knows the operator and every shape in it is fixed."""
    if node.op not in _TABLE or not node.is_tensor or node.static_shape is None:
        return False
    if node.op == "strided_slice":
        return all(integers(arg) is not None for arg in node.args[1:])
    if node.op == "arange":
        return all(hasattr(arg, "value") for arg in node.args)
    return True


def evaluate(node: Node, arrays: Sequence[Array]) -> Array:
    """The value of an operator for the values of its inputs, C-contiguous."""
    with np.errstate(all="ignore"):
        result = np.asarray(_TABLE[node.op](node, *arrays))
    shape, dtype = node.static_shape, numpy_dtype(node.dtype)
    assert result.shape == shape, f"{node}: computed {result.shape}, expected {shape}"
    return np.ascontiguousarray(result.astype(dtype, copy=False)).reshape(shape)


Function: TypeAlias = Callable[..., Any]


def _elementwise(function: Function) -> Function:
    return lambda node, *arrays: function(*arrays)


def _reduction(function: Function) -> Function:
    def reduce(node: Node, array: Array) -> Array:
        axis = node.attrs.axis
        axes = None if axis is None else tuple(int(value) for value in axis)
        # float64 inside: a folded sum does not depend on numpy's summation order.
        wide = array if array.dtype.kind in "iub" else array.astype(np.float64)
        return np.asarray(function(wide, axis=axes, keepdims=bool(node.attrs.keepdims)))

    return reduce


def _divide(left: Array, right: Array) -> Array:
    if left.dtype.kind in "iu":
        return np.asarray(np.trunc(left.astype(np.longdouble) / right))
    return np.asarray(left / right)


def _matmul(node: Node, left: Array, right: Array) -> Array:
    wide = np.float64 if numpy_dtype(node.dtype).kind not in "iu" else np.int64
    return np.asarray(np.matmul(left.astype(wide), right.astype(wide)))


def _erf(array: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(array.astype(np.float64)))


def _take(node: Node, array: Array, indices: Array) -> Array:
    axis = 0 if node.attrs.axis is None else int(node.attrs.axis)
    return np.take(array, indices, axis=axis)


def _strided_slice(node: Node, array: Array) -> Array:
    axes, begin, end, *strides = (integers(arg) for arg in node.args[1:])
    assert axes is not None and begin is not None and end is not None
    steps = strides[0] if strides and strides[0] is not None else [1] * len(axes)
    index = [slice(None)] * array.ndim
    for axis, start, stop, step in zip(axes, begin, end, steps, strict=True):
        index[axis] = slice(start, stop, step)
    return array[tuple(index)]


def _concat(node: Node, *arrays: Array) -> Array:
    axis = node.attrs.axis
    return np.concatenate(arrays, axis=0 if axis is None else int(axis))


def _cumsum(node: Node, array: Array) -> Array:
    axis = None if node.attrs.axis is None else int(node.attrs.axis)
    total = np.cumsum(array, axis=axis, dtype=numpy_dtype(node.dtype))
    return np.asarray(total - array.reshape(total.shape) if bool(node.attrs.exclusive) else total)


def _permute(node: Node, array: Array) -> Array:
    axes = node.attrs.axes
    return np.transpose(array, None if axes is None else [int(axis) for axis in axes])


def _full(node: Node, value: Array) -> Array:
    return np.full(node.static_shape or (), value.reshape(()), numpy_dtype(node.dtype))


def _filled(value: int) -> Function:
    return lambda node: np.full(node.static_shape or (), value, numpy_dtype(node.dtype))


def _arange(node: Node) -> Array:
    start, stop, step = (arg.value for arg in node.expr.args)
    return np.asarray(np.arange(start, stop, step), numpy_dtype(node.dtype))


def _rsqrt(array: Array) -> Array:
    return 1 / np.sqrt(array)


def _sigmoid(array: Array) -> Array:
    return 1 / (1 + np.exp(-array))


_UNARY: dict[str, Function] = {
    "abs": np.abs,
    "ceil": np.ceil,
    "cos": np.cos,
    "erf": _erf,
    "exp": np.exp,
    "floor": np.floor,
    "isfinite": np.isfinite,
    "isinf": np.isinf,
    "isnan": np.isnan,
    "log": np.log,
    "logical_not": np.logical_not,
    "negative": np.negative,
    "round": np.rint,
    "rsqrt": _rsqrt,
    "sigmoid": _sigmoid,
    "sign": np.sign,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "square": np.square,
    "tanh": np.tanh,
}

_BINARY: dict[str, Function] = {
    "add": np.add,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "divide": _divide,
    "equal": np.equal,
    "floor_divide": np.floor_divide,
    "floor_mod": np.mod,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "mod": np.fmod,
    "multiply": np.multiply,
    "not_equal": np.not_equal,
    "power": np.power,
    "subtract": np.subtract,
}

_TABLE: dict[str, Function] = {
    **{name: _elementwise(function) for name, function in {**_UNARY, **_BINARY}.items()},
    "arange": _arange,
    "astype": lambda node, array: array.astype(numpy_dtype(node.dtype)),
    "broadcast_to": lambda node, array: np.broadcast_to(array, node.static_shape),
    "concat": _concat,
    "cumsum": _cumsum,
    "expand_dims": lambda node, array: array.reshape(node.static_shape),
    "full": _full,
    "matmul": _matmul,
    "max": _reduction(np.max),
    "mean": _reduction(np.mean),
    "min": _reduction(np.min),
    "ones": _filled(1),
    "permute_dims": _permute,
    "prod": _reduction(np.prod),
    "reshape": lambda node, array: array.reshape(node.static_shape),
    "squeeze": lambda node, array: array.reshape(node.static_shape),
    "strided_slice": _strided_slice,
    "sum": _reduction(np.sum),
    "take": _take,
    "where": _elementwise(np.where),
    "zeros": _filled(0),
}
