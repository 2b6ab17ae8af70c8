"""Writes a formula as Relax bindings: `w(op.add, a, 1)` binds a sum and gives its variable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.values import KnownValue, TensorValue, Value, numpy_dtype
from graphc.ir import Expr


class Writer:
    """Bindings for one node; every method gives a value that is bound."""

    def __init__(self, context: Context, node: Node) -> None:
        self._context, self._node = context, node
        self._name = node.outputs[0] or node.op_type

    def __call__(self, operation: Callable[..., relax.Expr], *operands: Any, **more: Any) -> Value:
        """Operands are values or, of the first one's type, numbers."""
        dtype = next(item.dtype for item in operands if isinstance(item, (TensorValue, KnownValue)))
        exprs = [self._operand(item, dtype) for item in operands]
        return self._context.emit(operation(*exprs, **more), f"{self._name}.part")

    def _operand(self, item: Any, dtype: str) -> Any:
        if isinstance(item, (TensorValue, KnownValue)):
            return self._context.expr(item)
        if isinstance(item, (int, float)):
            return self._context.constant(item, dtype)
        return item

    def binary(self, operation: Callable[..., relax.Expr], left: Value, right: Value) -> Value:
        """With ONNX's broadcasting."""
        exprs, shape = self._context.broadcast(self._node, left, right)
        return self._context.emit(operation(*exprs), f"{self._name}.part", shape)

    def where(self, condition: Value, left: Value, right: Value) -> Value:
        exprs, shape = self._context.broadcast(self._node, condition, left, right)
        return self._context.emit(op.where(*exprs), f"{self._name}.part", shape)

    def full(self, number: Any, dtype: str) -> KnownValue:
        """A scalar."""
        return KnownValue(f"{self._name}.number", dtype, np.array(number, numpy_dtype(dtype)))

    def cast(self, value: Value, dtype: str) -> Value:
        if value.dtype == dtype:
            return value
        return self(lambda x: op.astype(x, dtype), value)

    def reshape(self, value: Value, shape: Sequence[Expr]) -> Value:
        return self._context.reshape(value, shape, f"{self._name}.shaped")

    def transpose(self, value: Value, order: Sequence[int]) -> Value:
        return self(lambda x: op.permute_dims(x, list(order)), value)

    def arange(self, extent: Expr) -> Value:
        """0 .. extent - 1 as int64."""
        if isinstance(extent, int):
            return KnownValue(f"{self._name}.range", "int64", np.arange(extent, dtype="int64"))
        return self._context.emit(op.arange(0, extent, 1, "int64"), f"{self._name}.range",
                                  (extent,))  # fmt: skip

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        shape = list(values[0].shape)
        total: Expr = 0
        for value in values:
            total = total + value.shape[axis]
        shape[axis] = self._context.symbols.simplify(total)
        parts = []
        for value in values:
            wanted = [*shape[:axis], value.shape[axis], *shape[axis + 1 :]]
            parts.append(
                self._context.expr(self._context.cast_shape(value, wanted, self._node.label))
            )
        return self._context.emit(op.concat(parts, axis=axis), f"{self._name}.joined", shape)
