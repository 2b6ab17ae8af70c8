"""RotaryEmbedding: rotates pairs of each head's elements by angles that grow with the position."""

from __future__ import annotations

from tvm import relax
from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.contrib.formula import DOMAIN, Formula, entry, fixed, is_scalar, shared
from graphc.frontend.onnx.contrib.scores import arange, rotate, turned
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.table import Result, Table
from graphc.frontend.onnx.values import Value
from graphc.ir import Expr


def _rotary(context: Context, node: Node) -> Result:
    f, value, positions = Formula(context, node), node.input(0), node.input(1)
    cosine, sine = node.input(2), node.input(3)
    node.need_float(value)
    node.same_dtype(value, cosine, sine)
    node.need_rank(value, 3, 4)
    if node.integer("is_packed_batching", 0):
        raise node.unsupported("ragged batches (is_packed_batching) are not compiled")
    if node.number("scale", 1.0) != 1.0:
        raise node.unsupported("scale is not 1: no version of the operator defines what it does")
    half = table_width(node, cosine, sine)
    if value.rank == 4:
        batch, heads, length, size = value.shape
        x = turned(f, context.expr(value))
    else:
        batch, length, hidden = value.shape
        width = fixed(node, hidden, "the hidden size")
        given = node.integer("num_heads", 0)
        if node.integer("rotary_embedding_dim", 0) and not given:
            raise node.error("rotary_embedding_dim needs num_heads")
        size = shared(node, width, given, "the hidden size") if given else 2 * half
        heads = shared(node, width, size, "the hidden size")
        x = f.reshape(context.expr(value), [batch, length, heads, size])
    turns = node.integer("rotary_embedding_dim", 0) or fixed(node, size, "the head size")
    if turns != 2 * half or turns > fixed(node, size, "the head size"):
        raise node.error(f"tables of {half} columns do not rotate {turns} of {size} elements")
    cos, sin = (_rows(f, table, positions, batch, length, half) for table in (cosine, sine))
    rotated = rotate(f, x, cos, sin, bool(node.integer("interleaved", 0)))
    if value.rank == 4:
        return op.permute_dims(rotated, [0, 2, 1, 3])
    return op.reshape(rotated, value.shape)


def table_width(node: Node, cosine: Value, sine: Value) -> int:
    """The number of columns of both tables [positions, columns]."""
    node.need_rank(cosine, 2, 2)
    node.need_rank(sine, 2, 2)
    columns = [fixed(node, table.shape[1], "a table's width") for table in (cosine, sine)]
    if columns[0] != columns[1] or columns[0] < 1:
        raise node.error(f"its tables have {columns[0]} and {columns[1]} columns")
    return columns[0]


def _rows(
    f: Formula, table: Value, positions: Value, batch: Expr, length: Expr, half: int
) -> relax.Expr:
    """[b | 1, s, 1, half]; one position stands for the first of consecutive ones."""
    rows = table.shape[0]
    if positions.rank == 2:
        f.fit(positions, (batch, length), "position_ids")
        return taken(f, table, f.context.indices(f.node, positions, rows), (batch, length), half)
    if not is_scalar(positions) or positions.rank != 1:
        raise f.node.error(f"position_ids has the shape {list(positions.shape)}")
    last = f.context.symbols.simplify(rows - length)
    if not f.context.symbols.at_most(0, last):
        f.context.symbols.require_at_most(length, rows, f"{f.node.label} has {rows} positions")
    start = f.context.checked(f.node, f.context.tensor(positions), 0, last)
    along = f(op.add, arange(f, length), f.cast(start.var, "int64"), shape=(length,))
    return taken(f, table, f.reshape(along, [1, length]), (1, length), half)


def taken(
    f: Formula, table: Value, safe: relax.Expr, shape: tuple[Expr, Expr], half: int
) -> relax.Expr:
    """The table's rows at indices that are known to be inside, as [b, s, 1, half]."""
    found = f(op.take, f.context.expr(table), safe, axis=0, mode="fast", shape=(*shape, half))
    return f.reshape(found, [*shape, 1, half])


TABLE: Table = {
    (DOMAIN, "RotaryEmbedding", 1): entry(
        _rotary,
        "interleaved is_packed_batching num_heads rotary_embedding_dim scale",
        inputs=4,
    ),
}
