"""The composites of quantised weights, private functions that are their own definitions.

    graphc.quantized_matmul(x [.., K], codes, scales[, minima])           x @ w      -> [.., N]
    graphc.quantized_take(codes, scales[, minima], rows [..])             w.T[rows]  -> [.., K]

    w[k, n] = codes[k, n] * scales[k // group, n] + minima[k // group, n]

`codes` are int8 or uint8 [K, N], one to a byte, before the layout pass packs them for a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, tirx

from graphc.ir import Expr, QuantizedWeight

MATMUL = "graphc.quantized_matmul"
TAKE = "graphc.quantized_take"


def matmul_function(
    weight: QuantizedWeight, shape: tuple[int, int], x_shape: Sequence[Expr]
) -> relax.Function:
    """x @ w for x of this shape and w [K, N] of `shape`."""
    x = relax.Var("x", relax.TensorType(_own(x_shape), "float32"))
    operands = _operands(weight, shape)
    builder = relax.BlockBuilder()
    with builder.function("quantized_matmul", [x, *operands], attrs=_attrs(MATMUL, weight)):
        with builder.dataflow():
            plain = _dequantized(builder, weight, operands, list(shape))
            result = builder.emit_output(relax.op.matmul(x, plain))
        builder.emit_func_output(result)
    return _private(builder, "quantized_matmul")


def take_function(
    weight: QuantizedWeight, shape: tuple[int, int], rows_shape: Sequence[Expr], dtype: str
) -> relax.Function:
    """w.T[rows] for w [K, N] of `shape`; only the codes of these rows are expanded."""
    rows = relax.Var("rows", relax.TensorType(_own(rows_shape), dtype))
    operands = _operands(weight, shape)
    builder = relax.BlockBuilder()
    with builder.function("quantized_take", [*operands, rows], attrs=_attrs(TAKE, weight)):
        with builder.dataflow():
            flat = builder.emit(relax.op.flatten(rows))
            parts = [builder.emit(relax.op.take(operand, flat, axis=1)) for operand in operands]
            depth, count = shape[0], flat.ty.shape.values[0]
            plain = _dequantized(builder, weight, parts, [depth, count])
            result = builder.emit(relax.op.permute_dims(plain, [1, 0]))
            whole = [*rows.ty.shape.values, tirx.IntImm("int64", depth)]
            result = builder.emit_output(relax.op.reshape(result, whole))
        builder.emit_func_output(result)
    return _private(builder, "quantized_take")


def operand_shapes(
    weight: QuantizedWeight, shape: tuple[int, int]
) -> dict[str, tuple[tuple[int, int], str]]:
    """Shape and type of codes, scales and perhaps minima."""
    groups = (shape[0] // weight.group, shape[1])
    found = {"codes": (shape, weight.code_type), "scales": (groups, "float32")}
    if weight.minima is not None:
        found["minima"] = (groups, "float32")
    return found


def _attrs(composite: str, weight: QuantizedWeight) -> dict[str, Any]:
    return {
        "Composite": composite,
        "bits": weight.bits,
        "group": weight.group,
        "activation": weight.activation,
    }


def _operands(weight: QuantizedWeight, shape: tuple[int, int]) -> list[relax.Var]:
    return [
        relax.Var(name, relax.TensorType(extents, dtype))
        for name, (extents, dtype) in operand_shapes(weight, shape).items()
    ]


def _own(shape: Sequence[Expr]) -> list[Expr]:
    """Dimensions of the function's own for the symbolic ones."""
    return [
        tirx.IntImm("int64", dim) if isinstance(dim, int) else tirx.Var(f"n{axis}", "int64")
        for axis, dim in enumerate(shape)
    ]


def _dequantized(
    builder: relax.BlockBuilder,
    weight: QuantizedWeight,
    operands: Sequence[relax.Expr],
    shape: Sequence[Expr],
) -> relax.Expr:
    op, (depth, width) = relax.op, shape
    assert isinstance(depth, int)
    groups = depth // weight.group
    codes = builder.emit(op.astype(operands[0], "float32"))
    value = builder.emit(op.reshape(codes, (groups, weight.group, width)))
    scales = builder.emit(op.reshape(operands[1], (groups, 1, width)))
    value = builder.emit(op.multiply(value, scales))
    if weight.minima is not None:
        minima = builder.emit(op.reshape(operands[2], (groups, 1, width)))
        value = builder.emit(op.add(value, minima))
    return builder.emit(op.reshape(value, (depth, width)))


def _private(builder: relax.BlockBuilder, name: str) -> relax.Function:
    function = builder.get()[name]
    return function.without_attr("global_symbol")
