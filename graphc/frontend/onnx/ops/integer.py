"""MatMulInteger and QLinearMatMul: 8-bit operands, exact int32 sums.

sums[m, n] = sum over k of (a[m, k] - a_zero) (b[k, n] - b_zero)          modulo 2^32
QLinear    = clamp(round(sums * (a_scale * b_scale / y_scale))) + y_zero  in float32
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.ops.quantize import is_zero, kind_of, shifted
from graphc.frontend.onnx.symbols import same
from graphc.frontend.onnx.table import Operator, Result, Table
from graphc.frontend.onnx.values import TensorValue, Value
from graphc.ir import Expr

OUT_ELEMENTWISE = {"op_pattern": 4}
"""TVM's OpPatternKind: what follows may be fused; what comes before would be done over and over."""

_BYTES = frozenset({"int8", "uint8"})


def operand(node: Node, index: int) -> Value:
    value = node.input(index)
    if value.dtype not in _BYTES:
        raise node.error(f"input {index} is {value.dtype}, it must be int8 or uint8")
    return value


def zero_point(node: Node, index: int, value: Value) -> Value | None:
    """The zero point, None where it is missing or known to be 0."""
    zero = node.optional(index)
    if zero is None or is_zero(zero):
        return None
    if zero.dtype != value.dtype:
        raise node.error(f"a zero point is {zero.dtype} and its operand {value.dtype}")
    return zero


class Arguments:
    """The values that a kernel reads, and the tensors of each while it is computed."""

    def __init__(self, *values: Value | None) -> None:
        self.present = [value for value in values if value is not None]
        self._values = values

    def tensors(self, given: Sequence[te.Tensor]) -> list[Any]:
        """A tensor, or None, for each value in order."""
        left = iter(given)
        return [None if value is None else next(left) for value in self._values]


# -- matrix products -----------------------------------------------------------------------


def sums_of(
    context: Context, node: Node, left: Value, right: Value, zeros: tuple[Value | None, ...]
) -> TensorValue:
    """numpy.matmul of (left - zero) and (right - zero) in int32."""
    node.need_rank(left, 1)
    node.need_rank(right, 1)
    name, where = node.outputs[0], f"{node.label} contracts them"
    rows: list[Expr] = [left.shape[-2]] if left.rank > 1 else []
    columns: list[Expr] = [right.shape[-1]] if right.rank > 1 else []
    depth = context.symbols.unify(left.shape[-1], right.shape[-2 if columns else -1], where)
    batch = context.broadcast_shape(node, left.shape[:-2], right.shape[:-2])
    left = context.cast_shape(left, [*_spelled(left, batch), *rows, depth], node.label)
    right = context.cast_shape(right, [*_spelled(right, batch), depth, *columns], node.label)
    shape = [*batch, *rows, *columns]
    left_zero, right_zero = zeros
    arguments = Arguments(left, right, left_zero, right_zero)
    for zero, size in ((left_zero, rows), (right_zero, columns)):
        _check_points(context, node, zero, size)

    def compute(*given: te.Tensor) -> te.Tensor:
        a, b, a_zero, b_zero = arguments.tensors(given)
        k = te.reduce_axis((0, depth), name="k")

        def element(*at: Any) -> Any:
            lead = at[: len(batch)]
            row, column = at[len(batch) : len(batch) + len(rows)], at[len(batch) + len(rows) :]
            x = a(*_broadcast(lead, left.shape[:-2]), *row, k).astype("int32")
            w = b(*_broadcast(lead, right.shape[:-2]), k, *column).astype("int32")
            if a_zero is not None:
                x = x - point(a_zero, at[len(batch)])
            if b_zero is not None:
                w = w - point(b_zero, at[-1])
            return te.sum(x * w, axis=k)

        return te.compute(shape, element, name="matmul_integer")

    attrs = {**OUT_ELEMENTWISE, "graphc.matmul_integer": _present(left_zero, right_zero)}
    return context.emit_te(name, compute, arguments.present, shape, "matmul_integer", attrs)


def _present(left: Value | None, right: Value | None) -> int:
    """Which zero points follow the operands: 1 for the left one's, 2 for the right one's."""
    return (left is not None) + 2 * (right is not None)


def _spelled(value: Value, batch: Sequence[Expr]) -> list[Expr]:
    """The dimensions before the matrix, named as in `batch` where they are not broadcast."""
    lead = value.shape[:-2]
    return [
        extent if same(extent, 1) else batch[len(batch) - len(lead) + axis]
        for axis, extent in enumerate(lead)
    ]


def _broadcast(at: Sequence[Any], shape: Sequence[Expr]) -> list[Any]:
    """The indices into a tensor whose dimensions of 1 are broadcast."""
    places = at[len(at) - len(shape) :]
    return [
        tirx.const(0, "int64") if same(extent, 1) else place
        for place, extent in zip(places, shape, strict=True)
    ]


def _check_points(context: Context, node: Node, zero: Value | None, size: Sequence[Expr]) -> None:
    """One zero point, or one for each row (of the left operand) or column (of the right)."""
    if zero is None or context.symbols.product(zero.shape) == 1:
        return
    if zero.rank != 1:
        raise node.unsupported(f"zero points of shape {list(zero.shape)}: one list is compiled")
    if not size:
        raise node.error("several zero points for a vector")
    context.symbols.unify(zero.shape[0], size[0], f"{node.label} subtracts zero points")


def point(zero: te.Tensor, place: Any) -> Any:
    """The only zero point, or that of a row, column or channel, as int32."""
    if all(same(_number(extent), 1) for extent in zero.shape):
        return zero(*[tirx.const(0, "int64")] * len(zero.shape)).astype("int32")
    return zero(place).astype("int32")


def _number(extent: Any) -> Expr:
    return int(extent.value) if isinstance(extent, tirx.IntImm) else extent


def _matmul_integer(context: Context, node: Node) -> Result:
    left, right = operand(node, 0), operand(node, 1)
    zeros = (zero_point(node, 2, left), zero_point(node, 3, right))
    return sums_of(context, node, left, right, zeros)


def _qlinear_matmul(context: Context, node: Node) -> Result:
    left, right = operand(node, 0), operand(node, 3)
    zeros = (zero_point(node, 2, left), zero_point(node, 5, right))
    sums = sums_of(context, node, left, right, zeros)
    scales = (node.input(1), node.input(4), node.input(6))
    columns = right.shape[-1] if right.rank > 1 else None
    return requantised(context, node, sums, scales, node.input(7), -1, columns)


def requantised(
    context: Context,
    node: Node,
    sums: TensorValue,
    scales: tuple[Value, Value, Value],
    zero: Value,
    axis: int,
    channels: Expr | None,
) -> TensorValue:
    """The sums in steps of y_scale from y_zero; the weight's scale may differ along `axis`."""
    kind = kind_of(zero)
    if zero.dtype not in _BYTES or zero.narrow:
        raise node.error(f"its result is {kind.name}, it must be int8 or uint8")
    for scale in scales:
        node.need_float(scale)
    each = context.symbols.product(scales[1].shape) != 1
    for value in (scales[0], scales[2], zero):
        if context.symbols.product(value.shape) != 1:
            raise node.unsupported(f"a scale or zero point of shape {list(value.shape)}")
    if each:
        if scales[1].rank != 1 or channels is None:
            raise node.unsupported(f"scales of shape {list(scales[1].shape)}")
        context.symbols.unify(scales[1].shape[0], channels, f"{node.label} scales channels")

    def compute(
        total: te.Tensor, a: te.Tensor, b: te.Tensor, y: te.Tensor, point: te.Tensor
    ) -> te.Tensor:
        def only(tensor: te.Tensor) -> Any:
            return tensor(*[tirx.const(0, "int64")] * len(tensor.shape))

        def element(*at: Any) -> Any:
            own = b(at[axis]) if each else only(b)
            scale = only(a).astype("float32") * own.astype("float32") / only(y).astype("float32")
            return shifted(total(*at).astype("float32") * scale, only(point), kind)

        return te.compute(list(sums.shape), element, name="requantize")

    values = [sums, *scales, zero]
    return context.emit_te(node.outputs[0], compute, values, sums.shape, "requantize")


TABLE: Table = {
    ("", "MatMulInteger", 10): Operator(_matmul_integer),
    ("", "QLinearMatMul", 10): Operator(_qlinear_matmul),
}
