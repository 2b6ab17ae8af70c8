"""The composite graphc.quantize_rows: each row of activations as uint8 with its own range.

    low = min(x, 0), high = max(x, 0) over the row          step = (high - low) / 255
    zero = round(-low / step)                               code = clamp(round(x / step) + zero)

    quantize_rows(x [.., K] float32)  ->  codes [.., K] uint8, scale [.., 1] float32,
                                          zero [.., 1] int32          x = (codes - zero) * scale

The range includes 0, so that 0 stays exact; a row of zeros has scale 1. `1 / step` is computed once
and multiplied by, in the kernel as in the definition here.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, tirx

from graphc.codegen.templates.quantize_rows import LEVELS
from graphc.ir import Expr

COMPOSITE = "graphc.quantize_rows"


def quantize_rows_function(shape: Sequence[Expr]) -> relax.Function:
    """The private Relax function for x of this shape; its last dimension is a number."""
    dims = [
        tirx.IntImm("int64", dim) if isinstance(dim, int) else tirx.Var(f"n{axis}", "int64")
        for axis, dim in enumerate(shape)
    ]
    x = relax.Var("x", relax.TensorType(dims, "float32"))
    builder = relax.BlockBuilder()
    with builder.function("quantize_rows", [x], attrs={"Composite": COMPOSITE}):
        with builder.dataflow():
            result = builder.emit_output(_definition(builder, x))
        builder.emit_func_output(result)
    return builder.get()["quantize_rows"].without_attr("global_symbol")


def _definition(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    op = relax.op

    def number(value: float) -> relax.Expr:
        return relax.const(value, "float32")

    low = builder.emit(op.minimum(op.min(x, [-1], keepdims=True), number(0.0)))
    high = builder.emit(op.maximum(op.max(x, [-1], keepdims=True), number(0.0)))
    span = builder.emit(op.subtract(high, low))
    none = builder.emit(op.equal(span, number(0.0)))
    scale = builder.emit(op.where(none, number(1.0), op.multiply(span, number(1.0 / LEVELS))))
    inverse = builder.emit(op.where(none, number(1.0), op.divide(number(LEVELS), span)))
    zero = builder.emit(op.round(op.multiply(op.negative(low), inverse)))
    codes = builder.emit(op.add(op.round(op.multiply(x, inverse)), zero))
    codes = builder.emit(op.astype(op.clip(codes, 0, LEVELS), "uint8"))
    return relax.Tuple([codes, scale, builder.emit(op.astype(zero, "int32"))])
