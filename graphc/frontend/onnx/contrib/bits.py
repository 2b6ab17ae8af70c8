"""Matrix products with block-quantised weights, unpacked inside the kernel that reads them.

    w[n, k] = (q[n, k] - zero[n, k / block]) * scale[n, k / block]       q of 2, 4 or 8 bits

Values lie in bytes from the lowest bits on, each row (or block of a row) from a new byte on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx
from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.contrib.formula import DOMAIN, Formula, entry
from graphc.frontend.onnx.contrib.packed import packed_weight
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.symbols import same
from graphc.frontend.onnx.table import Result, Table
from graphc.frontend.onnx.values import Value
from graphc.ir import Expr, QuantizedWeight

WIDTHS = (2, 4, 8)


def unpack(packed: Callable[[Any], Any], position: Any, bits: int) -> Any:
    """Element `position` of a row of packed bytes, as an int32; `packed` reads a byte."""
    per_byte = 8 // bits
    if per_byte == 1:
        return packed(position).astype("int32")
    byte = packed(tirx.floordiv(position, per_byte)).astype("int32")
    shift = (tirx.floormod(position, per_byte) * bits).astype("int32")
    return tirx.bitwise_and(tirx.shift_right(byte, shift), tirx.const((1 << bits) - 1, "int32"))


def width(node: Node, name: str, default: int) -> int:
    bits = node.integer(name, default)
    if bits not in WIDTHS:
        raise node.unsupported(f"{bits}-bit weights are not compiled, only 2, 4 and 8 bits are")
    return bits


def block_size(node: Node, least: int = 16) -> int:
    size = node.integer("block_size")
    if size < least or size & (size - 1):
        raise node.error(f"block_size {size} is not a power of two of at least {least}")
    return size


def _matmul_nbits(context: Context, node: Node) -> Result:
    value, weights, scales = node.input(0), node.input(1), node.input(2)
    bits, size = width(node, "bits", 4), block_size(node)
    rows, inner = node.integer("N"), node.integer("K")
    if rows < 1 or inner < 1:
        raise node.error(f"N is {rows} and K is {inner}")
    if node.integer("weight_prepacked", 0):
        raise node.unsupported("weights packed for a GPU kernel: export with weight_prepacked=0")
    if node.optional(4) is not None:
        raise node.unsupported("g_idx is deprecated: quantise without act_order")
    node.need_float(value)
    node.same_dtype(value, scales)
    node.need_rank(value, 1)
    blocks = -(-inner // size)
    f = Formula(context, node)
    packed = _shaped(f, weights, (rows, blocks, size * bits // 8), "uint8", "B")
    scale = _shaped(f, scales, (rows, blocks), value.dtype, "the scales")
    zeros = node.optional(3)
    packed_zeros = zeros is not None and zeros.dtype == "uint8"
    if zeros is not None:
        extent = -(-blocks * bits // 8) if packed_zeros else blocks
        kind = "uint8" if packed_zeros else value.dtype
        zeros = _shaped(f, zeros, (rows, extent), kind, "the zero points")
    lead = value.shape[:-1]
    kept = _kept_packed(node, [weights, scales, zeros], (rows, inner), size, bits)
    if kept is not None and value.dtype == "float32":
        context.symbols.unify(value.shape[-1], inner, f"{node.label} contracts them")
        plain = f(op.permute_dims, context.quantized_param(weights.name, kept, (rows, inner)))
        total = f(op.matmul, context.expr(value), plain)
        if node.optional(5) is not None:
            total = f(op.add, total, f.fit(node.input(5), (rows,), "the bias"))
        return total
    flat = [context.symbols.product(list(lead)), inner]
    context.symbols.unify(value.shape[-1], inner, f"{node.label} contracts them")
    x = f.value(op.reshape(context.expr(value), tuple(flat)), flat)

    def product(a: te.Tensor, b: te.Tensor, s: te.Tensor, *z: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, inner), name="k")

        def weight(n: Any) -> Any:
            block = tirx.floordiv(k, size)
            within = tirx.floormod(k, size)
            q = unpack(lambda at: b(n, block, at), within, bits).astype("float32")
            if not z:
                zero = tirx.const(float(1 << (bits - 1)), "float32")
            elif packed_zeros:
                zero = unpack(lambda at: z[0](n, at), block, bits).astype("float32")
            else:
                zero = z[0](n, block).astype("float32")
            return (q - zero) * s(n, block).astype("float32")

        return te.compute(
            (flat[0], rows),
            lambda m, n: te.sum(a(m, k).astype("float32") * weight(n), axis=k),
            name="matmul_nbits",
        )

    operands: list[Value] = [x, packed, scale, *([zeros] if zeros is not None else [])]
    made = context.emit_te(f"{f.name}.product", product, operands, [flat[0], rows], "matmul_nbits")
    total, bias = made.var, node.optional(5)
    if bias is not None:
        total = f(op.add, total, f.cast(f.fit(bias, (rows,), "the bias"), "float32"))
    return op.reshape(f.cast(total, value.dtype), (*lead, rows))


def _kept_packed(
    node: Node, operands: Sequence[Value | None], shape: tuple[int, int], size: int, bits: int
) -> QuantizedWeight | None:
    """The weight for the kernels of few bits; accuracy_level 4 asks for int8 activations."""
    activation = "int8" if node.integer("accuracy_level", 0) == 4 else "float"
    return packed_weight(operands, shape, size, bits, activation)


def _shaped(f: Formula, value: Value, shape: Sequence[int], dtype: str, what: str) -> Value:
    """The value in this shape; exporters write it flat, too."""
    if value.dtype != dtype:
        raise f.node.error(f"{what} must be {dtype}, it is {value.dtype}")
    count = math.prod(shape)
    if not same(f.context.symbols.product(list(value.shape)), count):
        raise f.node.error(f"{what} has the shape {list(value.shape)}, {list(shape)} is needed")
    return f.context.reshape(value, shape, f"{value.name}.shaped")


# -- gathers -------------------------------------------------------------------------------


def _gather_block_quantized(context: Context, node: Node) -> Result:
    """(q - zero) * scale of the gathered rows; indices are checked instead of giving zeros."""
    f, data, indices, scales = Formula(context, node), *(node.input(i) for i in range(3))
    zeros = node.optional(3)
    if data.dtype != "uint8":
        raise node.unsupported(f"data of type {data.dtype} is not compiled, only uint8 is")
    bits, size = width(node, "bits", 4), block_size(node)
    per_byte = 8 // bits
    rank = data.rank
    gather = node.axis(node.integer("gather_axis", 0), rank)
    along = node.axis(node.integer("quantize_axis", 1), rank)
    if gather == along or (gather == rank - 1 and per_byte > 1):
        raise node.error(f"gather_axis {gather} is quantised or packed")
    node.need_float(scales)
    node.need_rank(scales, rank, rank)
    shape: list[Expr] = [*data.shape[:-1], data.shape[-1] * per_byte]
    extents = [extent if isinstance(extent, int) else 0 for extent in shape]
    if 0 in extents:
        raise node.unsupported("quantised data whose shape depends on the inputs")
    blocks = [*extents]
    blocks[along] = -(-extents[along] // size)
    f.fit(scales, blocks, "the scales")
    if zeros is not None:
        packed = [*blocks[:-1], -(-blocks[-1] // per_byte)]
        f.fit(zeros, packed, "the zero points")
        if zeros.dtype != "uint8":
            raise node.error(f"the zero points are {zeros.dtype}, they must be uint8")
    kept = None
    if (rank, gather, along) == (2, 0, 1) and size % 8 == 0:
        kept = packed_weight([data, scales, zeros], (extents[0], extents[1]), size, bits, "float")
    safe = f.value(context.indices(node, indices, extents[gather]), indices.shape)
    if kept is not None:
        table = context.quantized_param(data.name, kept, (extents[0], extents[1]))
        return op.take(table, context.expr(safe), axis=0)
    count = indices.rank
    result = [*shape[:gather], *indices.shape, *shape[gather + 1 :]]

    def take(q: te.Tensor, at: te.Tensor, s: te.Tensor, *z: te.Tensor) -> te.Tensor:
        def element(*place: Any) -> Any:
            row = at(*place[gather : gather + count])
            full = [*place[:gather], row, *place[gather + count :]]
            block = list(full)
            block[along] = tirx.floordiv(full[along], size)
            value = unpack(lambda last: q(*full[:-1], last), full[-1], bits)
            if z:
                zero = unpack(lambda last: z[0](*block[:-1], last), block[-1], bits)
            else:
                zero = tirx.const(1 << (bits - 1), "int32")
            return (value - zero).astype(scales.dtype) * s(*block)

        return te.compute(result, element, name="gather_block_quantized")

    operands: list[Value] = [data, safe, scales, *([zeros] if zeros is not None else [])]
    name = f"{f.name}.taken"
    return context.emit_te(name, take, operands, result, "gather_block_quantized")


TABLE: Table = {
    (DOMAIN, "MatMulNBits", 1): entry(
        _matmul_nbits, "K N accuracy_level bits block_size weight_prepacked", inputs=6
    ),
    (DOMAIN, "GatherBlockQuantized", 1): entry(
        _gather_block_quantized, "bits block_size gather_axis quantize_axis", inputs=4
    ),
}
