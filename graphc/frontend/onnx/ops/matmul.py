"""MatMul, Gemm and Einsum."""

from __future__ import annotations

from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.symbols import same
from graphc.frontend.onnx.table import Operator, Result, Table
from graphc.frontend.onnx.values import FLOATS
from graphc.ir import Expr


def _matmul(context: Context, node: Node) -> Result:
    """numpy.matmul: a vector on either side loses its dimension again."""
    left, right = node.input(0), node.input(1)
    node.same_dtype(left, right)
    node.need_number(left)
    node.need_rank(left, 1)
    node.need_rank(right, 1)
    inner_axis = -1 if right.rank == 1 else -2
    inner = context.symbols.unify(
        left.shape[-1], right.shape[inner_axis], f"{node.label} contracts them"
    )
    batch = context.broadcast_shape(node, left.shape[:-2], right.shape[:-2])
    a = [*_spelled(left.shape[:-2], batch), *left.shape[-2:-1], inner]
    tail = [inner] if right.rank == 1 else [inner, right.shape[-1]]
    b = [*_spelled(right.shape[:-2], batch), *tail]
    shape = [
        *batch,
        *(left.shape[-2:-1]),
        *(right.shape[-1:] if right.rank > 1 else ()),
    ]
    call = op.matmul(
        context.expr(context.cast_shape(left, a, node.label)),
        context.expr(context.cast_shape(right, b, node.label)),
    )
    return context.emit(call, node.outputs[0], shape, node.label)


def _spelled(shape: tuple[Expr, ...], batch: tuple[Expr, ...]) -> list[Expr]:
    """`shape` with the dimensions of `batch` wherever it is not broadcast."""
    return [
        extent if same(extent, 1) else batch[len(batch) - len(shape) + axis]
        for axis, extent in enumerate(shape)
    ]


def _gemm(context: Context, node: Node) -> Result:
    """alpha * A' B' + beta * C, A' and B' transposed on demand."""
    left, right, bias = node.input(0), node.input(1), node.optional(2)
    node.same_dtype(left, right, *([bias] if bias else []))
    node.need_number(left)
    node.need_rank(left, 2, 2)
    node.need_rank(right, 2, 2)
    alpha, beta = node.number("alpha", 1.0), node.number("beta", 1.0)
    if left.dtype not in FLOATS and (alpha != 1.0 or beta != 1.0):
        raise node.unsupported("integer operands with alpha or beta are not compiled")
    turn_left, turn_right = bool(node.integer("transA", 0)), bool(node.integer("transB", 0))
    name = node.outputs[0]
    k, m = left.shape if turn_left else reversed(left.shape)
    n, inner = right.shape if turn_right else reversed(right.shape)
    common = context.symbols.unify(k, inner, f"{node.label} contracts them")
    a = context.expr(
        context.cast_shape(left, [common, m] if turn_left else [m, common], node.label)
    )
    b = context.expr(
        context.cast_shape(right, [n, common] if turn_right else [common, n], node.label)
    )
    if turn_left:
        a = context.emit(op.permute_dims(a, [1, 0]), f"{name}.a").var
    if turn_right:
        b = context.emit(op.permute_dims(b, [1, 0]), f"{name}.b").var
    scaled, biased = alpha != 1.0, bias is not None and beta != 0.0
    product = context.emit(
        op.matmul(a, b), f"{name}.product" if scaled or biased else name, [m, n], node.label
    )
    if scaled:
        factor = context.constant(alpha, left.dtype)
        product = context.emit(
            op.multiply(product.var, factor), f"{name}.scaled" if biased else name
        )
    if bias is None or not biased:
        return product
    if bias.rank > 2:
        raise node.error(f"C has {bias.rank} dimensions, at most 2 are allowed")
    shape = context.broadcast_shape(node, [m, n], bias.shape)
    if len(shape) != 2 or not all(same(x, y) for x, y in zip(shape, [m, n], strict=True)):
        raise node.error(f"C of shape {list(bias.shape)} does not broadcast to [{m}, {n}]")
    addend = context.aligned(node.label, bias, shape)
    if beta != 1.0:
        factor = context.constant(beta, left.dtype)
        addend = context.emit(op.multiply(addend, factor), f"{name}.bias").var
    return context.emit(op.add(product.var, addend), name, [m, n])


def _einsum(context: Context, node: Node) -> Result:
    """Equations without an ellipsis or a repeated letter in one operand."""
    values = node.all_inputs()
    node.same_dtype(*values)
    equation = node.text("equation").replace(" ", "")
    if "." in equation or not equation.isascii():
        raise node.unsupported(f"equation {equation!r} is not compiled: write out the dimensions")
    terms, arrow, result = equation.partition("->")
    letters = terms.split(",")
    if len(letters) != len(values):
        raise node.error(f"equation {equation!r} does not have {len(values)} operands")
    extents: dict[str, Expr] = {}
    for term, value in zip(letters, values, strict=True):
        if not ((term.isalpha() and len(set(term)) == len(term)) or term == ""):
            raise node.unsupported(f"operand {term!r} of its equation is not compiled")
        if len(term) != value.rank:
            raise node.error(f"operand {term!r} has {value.rank} dimensions")
        for letter, extent in zip(term, value.shape, strict=True):
            known = extents.get(letter, extent)
            extents[letter] = context.symbols.unify(known, extent, f"{node.label} uses {letter}")
    if not arrow:
        joined = "".join(letters)
        result = "".join(sorted(x for x in set(joined) if joined.count(x) == 1))
    if len(set(result)) != len(result) or not set(result) <= set(extents):
        raise node.error(f"equation {equation!r} has a wrong result")
    return _contract(context, node, letters, result, extents)


def _contract(
    context: Context, node: Node, letters: list[str], result: str, extents: dict[str, Expr]
) -> Result:
    """Operands one after another: laid out alike, multiplied, summed over what is not needed."""
    name = node.outputs[0]
    values = node.all_inputs()
    held, total = (
        letters[0],
        context.expr(context.cast_shape(values[0], [extents[x] for x in letters[0]], node.label)),
    )
    for index, (term, value) in enumerate(zip(letters[1:], values[1:], strict=True), 1):
        other = context.expr(context.cast_shape(value, [extents[x] for x in term], node.label))
        later = set(result).union(*letters[index + 1 :]) if index + 1 < len(letters) else set(
            result
        )  # fmt: skip
        total, held = _pair(context, name, (total, held), (other, term), later, extents)
    gone = [axis for axis, letter in enumerate(held) if letter not in result]
    if gone:
        total = context.emit(op.sum(total, gone), f"{name}.sum").var
        held = "".join(letter for letter in held if letter in result)
    order = [held.index(letter) for letter in result]
    if order != list(range(len(order))):
        return op.permute_dims(total, order)
    return total


def _pair(
    context: Context,
    name: str,
    left: tuple[object, str],
    right: tuple[object, str],
    later: set[str],
    extents: dict[str, Expr],
) -> tuple[object, str]:
    """Two operands as one batched matrix product [batch, rows, inner] x [batch, inner, columns]."""
    (a, at), (b, bt) = left, right

    def without(x: object, term: str, other: str) -> tuple[object, str]:
        gone = [axis for axis, letter in enumerate(term) if letter not in other and letter not in
                later]  # fmt: skip
        if not gone:
            return x, term
        kept = "".join(letter for axis, letter in enumerate(term) if axis not in gone)
        return context.emit(op.sum(x, gone), f"{name}.summed").var, kept

    a, at = without(a, at, bt)
    b, bt = without(b, bt, at)
    batch = [x for x in at if x in bt and x in later]
    inner = [x for x in at if x in bt and x not in later]
    rows = [x for x in at if x not in bt]
    columns = [x for x in bt if x not in at]

    def matrix(x: object, term: str, order: list[str], tail: tuple[list[str], list[str]]) -> object:
        moved = [term.index(letter) for letter in order]
        if moved != list(range(len(moved))):
            x = context.emit(op.permute_dims(x, moved), f"{name}.moved").var
        shape = [context.symbols.product([extents[k] for k in group])
                 for group in (batch, *tail)]  # fmt: skip
        return context.emit(op.reshape(x, tuple(shape)), f"{name}.matrix", shape).var

    a = matrix(a, at, [*batch, *rows, *inner], (rows, inner))
    b = matrix(b, bt, [*batch, *inner, *columns], (inner, columns))
    product = context.emit(op.matmul(a, b), f"{name}.product").var
    letters = [*batch, *rows, *columns]
    shape = [extents[letter] for letter in letters]
    joined = context.emit(op.reshape(product, tuple(shape)), f"{name}.joined", shape)
    return joined.var, "".join(letters)


TABLE: Table = {
    ("", "MatMul", 1): Operator(_matmul),
    ("", "Gemm", 7): Operator(_gemm),
    ("", "Einsum", 12): Operator(_einsum),
}
