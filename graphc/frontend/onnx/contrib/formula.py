"""What the contrib converters share: entries that know their attributes, and written formulas."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax
from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.symbols import same
from graphc.frontend.onnx.table import Convert, Operator, Result, Table
from graphc.frontend.onnx.values import TensorValue, Value
from graphc.ir import Expr

DOMAIN = "com.microsoft"


def entry(convert: Convert, attributes: str = "", *, inputs: int, outputs: int = 1) -> Operator:
    """An operator that has these attributes and at most so many inputs and outputs.

    ONNX has no schema of the domain: what a later version of an operator adds is refused here.
    """
    known = frozenset(attributes.split())

    def checked(context: Context, node: Node) -> Result:
        unknown = sorted(set(node.attributes) - known)
        if unknown:
            raise node.unsupported(f"attribute {', '.join(unknown)} is not known to graphc")
        if any(value is not None for value in node.inputs[inputs:]):
            raise node.unsupported(f"it has {len(node.inputs)} inputs, at most {inputs} are known")
        if any(node.outputs[outputs:]):
            raise node.unsupported(
                f"it has {len(node.outputs)} outputs, at most {outputs} are known"
            )
        return convert(context, node)

    return Operator(checked)


class Formula:
    """Writes what a node computes as Relax bindings; calling it binds one operation.

    Floats among the operands are constants of the type of the first operand that is a tensor.
    """

    def __init__(self, context: Context, node: Node) -> None:
        self.context, self.node = context, node
        self.name = next((name for name in node.outputs if name), node.label)

    def __call__(
        self,
        operation: Callable[..., relax.Expr],
        *operands: Any,
        shape: Sequence[Expr] | None = None,
        **options: Any,
    ) -> relax.Expr:
        tensors = [x for x in operands if isinstance(x, relax.Expr)]
        exprs = [
            self.context.constant(x, str(tensors[0].ty.dtype)) if isinstance(x, float) else x
            for x in operands
        ]
        return self.bind(operation(*exprs, **options), shape)

    def bind(self, call: relax.Expr, shape: Sequence[Expr] | None = None) -> relax.Expr:
        return self.context.emit(call, f"{self.name}.part", shape, self.node.label).var

    def value(self, call: relax.Expr, shape: Sequence[Expr] | None = None) -> TensorValue:
        return self.context.emit(call, f"{self.name}.part", shape, self.node.label)

    def known(self, expr: relax.Expr) -> TensorValue:
        """A bound expression as a value."""
        shape = [int(e.value) if hasattr(e, "value") else e for e in expr.ty.shape.values]
        return TensorValue(f"{self.name}.part", str(expr.ty.dtype), tuple(shape), expr)

    def result(
        self, expr: relax.Expr, shape: Sequence[Expr] | None = None, index: int = 0
    ) -> TensorValue:
        """The node's result number `index`."""
        name = self.node.outputs[index] if index < len(self.node.outputs) else ""
        return self.context.emit(expr, name or f"{self.name}.part", shape, self.node.label)

    def reshape(self, expr: relax.Expr, shape: Sequence[Expr]) -> relax.Expr:
        return self(op.reshape, expr, tuple(shape), shape=shape)

    def cast(self, expr: relax.Expr, dtype: str) -> relax.Expr:
        return expr if str(expr.ty.dtype) == dtype else self(op.astype, expr, dtype)

    def full(self, number: float, dtype: str) -> relax.Expr:
        return self.context.constant(number, dtype)

    def slice(self, expr: relax.Expr, axis: int, start: Expr, stop: Expr) -> relax.Expr:
        """[start, stop) along an axis, which the caller knows to be inside."""
        return self(op.strided_slice, expr, [axis], [start], [stop], [1], assume_inbound=True)

    def fit(self, value: Value, shape: Sequence[Expr], what: str) -> relax.Expr:
        """The value, whose shape has to be this one."""
        if value.rank != len(shape):
            raise self.node.error(f"{what} has {value.rank} dimensions, {len(shape)} are needed")
        return self.context.expr(
            self.context.cast_shape(value, shape, f"{self.node.label} needs it of {what}")
        )

    def standard(
        self,
        table: Table,
        op_type: str,
        version: int,
        inputs: Sequence[Value | relax.Expr | None],
        **attributes: Any,
    ) -> TensorValue:
        """What one of ONNX's own operators makes of these inputs."""
        return self.standards(table, op_type, version, inputs, 1, **attributes)[0]

    def standards(
        self,
        table: Table,
        op_type: str,
        version: int,
        inputs: Sequence[Value | relax.Expr | None],
        count: int,
        **attributes: Any,
    ) -> list[TensorValue]:
        """The first `count` results of one of ONNX's own operators."""
        values = tuple(self.known(x) if isinstance(x, relax.Expr) else x for x in inputs)
        node = dataclasses.replace(
            self.node,
            domain="",
            op_type=op_type,
            version=version,
            inputs=values,
            outputs=tuple(f"{self.name}.{op_type.lower()}{n or ''}" for n in range(count)),
            attributes=attributes,
        )
        since = max(key[2] for key in table if key[1] == op_type and key[2] <= version)
        made = table["", op_type, since].convert(self.context, node)
        results: list[Any] = [*made] if isinstance(made, (list, tuple)) else [made]
        return [
            self.context.emit(result, name, where=self.node.label)
            if isinstance(result, relax.Expr)
            else self.context.tensor(result)
            for name, result in zip(node.outputs, results, strict=True)
        ]


def fixed(node: Node, extent: Expr, what: str) -> int:
    """A dimension that must not depend on the inputs."""
    if not isinstance(extent, int):
        raise node.unsupported(f"{what} is {extent}: it must not depend on the inputs")
    return extent


def shared(node: Node, extent: int, parts: int, what: str) -> int:
    """extent / parts, which must be whole."""
    if parts < 1 or extent < 1 or extent % parts:
        raise node.error(f"{what} {extent} cannot be split into {parts}")
    return extent // parts


def is_scalar(value: Value) -> bool:
    """One element, in any number of dimensions."""
    return all(same(extent, 1) for extent in value.shape)
