"""Rewrites that remove reshapes, transposes, slices, broadcasts and casts; used by `simplify`.

    permute(permute(x))                                   ----->   permute(x) or x
    reshape(reshape(x)), squeeze(x), expand_dims(x)       ----->   reshape(x) or x
    reshape(permute(reshape(x))), leading axes joined     ----->   permute(x)
    x[:], concat(x), astype(x, its own type)              ----->   x
    add(broadcast(x), y), y as large as the result        ----->   add(x, y)
    exp(broadcast(x)), where(broadcast(x), 0, 1)          ----->   broadcast(exp(x)) ...

Each rule takes a node and answers with the node to use instead, or None: not mine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm
from tvm import relax

from graphc.ir import Expr
from graphc.passes.evaluate import integers, numpy_dtype
from graphc.passes.graph import Graph
from graphc.passes.node import Node

_ARITHMETIC = {"add", "subtract", "multiply", "divide", "maximum", "minimum", "power"}
_COMPARISONS = {"equal", "not_equal", "greater", "greater_equal", "less", "less_equal"}
_LOGIC = {"logical_and", "logical_or", "logical_xor", "where"}
ELEMENTWISE = frozenset(_ARITHMETIC | _COMPARISONS | _LOGIC)
UNARY = frozenset({"astype", "exp", "isnan", "log", "logical_not", "negative", "sqrt", "rsqrt"})
_ALIASES = frozenset({"expand_dims", "squeeze", "flatten"})


def permutation(node: Node) -> tuple[int, ...]:
    """The axes of a permute_dims, counted from the front."""
    axes = node.attrs.axes
    rank = node.rank
    if axes is None:
        return tuple(reversed(range(rank)))
    return tuple(int(axis) % rank for axis in axes)


def reshape_to(graph: Graph, node: Node, shape: Sequence[Expr]) -> Node:
    """The node itself if it has the shape, else its reshape."""
    if graph.shapes.same_all(node.shape, shape):
        return node
    return graph.emit(relax.op.reshape(node.var, tuple(shape)))


def permute_to(graph: Graph, node: Node, axes: Sequence[int]) -> Node:
    """The node with its axes in another order."""
    if list(axes) == list(range(node.rank)):
        return node
    return graph.emit(relax.op.permute_dims(node.var, list(axes)))


def use_reshape(graph: Graph, node: Node) -> Node | None:
    """Spell squeeze, expand_dims and flatten as reshape."""
    return reshape_to(graph, node.inputs[0], node.shape) if node.op in _ALIASES else None


def cancel_reshape(graph: Graph, node: Node) -> Node | None:
    """Drop a reshape to the same shape; join a reshape of a reshape."""
    source = node.inputs[0]
    if graph.shapes.same_all(source.shape, node.shape):
        return source
    if source.op == "reshape" or source.op in _ALIASES:
        return reshape_to(graph, source.inputs[0], node.shape)
    return None


def cancel_joined_axes(graph: Graph, node: Node) -> Node | None:
    """See through leading axes that are joined for a transpose and split again.

    reshape(permute(reshape(x [a, b, s, d], [a*b, s, d]), 0 2 1), [a, b, d, s]) is
    permute(x, 0 1 3 2): exporters write batched transposes so.
    """
    turned = node.inputs[0]
    if turned.op != "permute_dims" or turned.inputs[0].op != "reshape":
        return None
    joined = turned.inputs[0]
    source = joined.inputs[0]
    axes = permutation(turned)
    extra = source.rank - joined.rank
    same = graph.shapes.same_all
    if (
        extra < 1
        or axes[0] != 0
        or not same(joined.shape[1:], source.shape[extra + 1 :])
        or not same(node.shape[: extra + 1], source.shape[: extra + 1])
        or not same(node.shape[extra + 1 :], turned.shape[1:])
    ):
        return None
    return permute_to(graph, source, [*range(extra + 1), *(axis + extra for axis in axes[1:])])


def cancel_permute(graph: Graph, node: Node) -> Node | None:
    """Drop an identity; join two transposes; spell one that moves nothing as reshape."""
    source, axes = node.inputs[0], permutation(node)
    if list(axes) == list(range(node.rank)):
        return source
    if source.op == "permute_dims":
        inner = permutation(source)
        return permute_to(graph, source.inputs[0], [inner[axis] for axis in axes])
    solid = [axis for axis in axes if source.shape[axis] != 1]
    if solid == sorted(solid):
        return reshape_to(graph, source, node.shape)
    return None


def cancel_cast(graph: Graph, node: Node) -> Node | None:
    """Drop a cast to the same type; join a cast of a cast that lost nothing."""
    source = node.inputs[0]
    if source.dtype == node.dtype:
        return source
    if source.op != "astype":
        return None
    origin = source.inputs[0]
    if not np.can_cast(numpy_dtype(origin.dtype), numpy_dtype(source.dtype), "safe"):
        return None
    if origin.dtype == node.dtype:
        return origin
    return graph.emit(relax.op.astype(origin.var, node.dtype))


def cancel_broadcast(graph: Graph, node: Node) -> Node | None:
    """Drop a broadcast to the same shape; join a broadcast of a broadcast."""
    source = node.inputs[0]
    if graph.shapes.same_all(source.shape, node.shape):
        return source
    if source.op == "broadcast_to":
        return graph.emit(relax.op.broadcast_to(source.inputs[0].var, node.shape))
    return None


def cancel_slice(graph: Graph, node: Node) -> Node | None:
    """Drop a slice of everything: with steps of one, the shape says that."""
    steps = integers(node.args[4]) if len(node.args) > 4 else []
    if steps is None or any(step != 1 for step in steps):
        return None
    source = node.inputs[0]
    return source if graph.shapes.same_all(source.shape, node.shape) else None


def cancel_concat(graph: Graph, node: Node) -> Node | None:
    """Drop the concatenation of a single tensor."""
    return node.inputs[0] if len(node.inputs) == 1 else None


def cancel_match_cast(graph: Graph, node: Node) -> Node | None:
    """Drop a match_cast to a shape that the value provably has."""
    source = node.inputs[0]
    if not (source.is_tensor and node.is_tensor and source.dtype == node.dtype):
        return None
    return source if graph.shapes.same_all(source.shape, node.shape) else None


def cancel_implied_broadcast(graph: Graph, node: Node) -> Node | None:
    """Drop a broadcast whose operator broadcasts anyway, another operand being large enough."""
    inputs = list(node.inputs)
    for position, source in enumerate(inputs):
        if source.op != "broadcast_to":
            continue
        inner = source.inputs[0]
        others = [other for other in inputs if other is not source]
        if inputs.count(source) == 1 and _broadcasts(graph, [inner, *others], node.shape):
            inputs[position] = inner
            operator = getattr(relax.op, node.op)
            return graph.emit(operator(*(operand.var for operand in inputs)), node.name)
    return None


def sink_broadcast(graph: Graph, node: Node) -> Node | None:
    """Compute on the small tensor and broadcast the result, if the rest are single numbers."""
    wide = {source for source in node.inputs if source.op == "broadcast_to"}
    if len(wide) != 1 or not all(isinstance(arg, Node) for arg in node.args):
        return None
    (source,) = wide
    others = [other for other in node.inputs if other is not source]
    if not all(other.is_constant and all(dim == 1 for dim in other.shape) for other in others):
        return None
    if not graph.shapes.same_all(source.shape, node.shape):
        return None
    operands = [source.inputs[0] if arg is source else arg for arg in node.inputs]
    call = node.expr
    small = tvm.ir.Call(call.op, [operand.var for operand in operands], call.attrs, call.ty_args)
    return graph.emit(relax.op.broadcast_to(graph.emit(small, node.name).var, node.shape))


def _broadcasts(graph: Graph, operands: Sequence[Node], shape: Sequence[Expr]) -> bool:
    """Whether the operands broadcast to exactly the shape."""
    for position in range(1, len(shape) + 1):
        wanted = shape[-position]
        extents = [node.shape[-position] for node in operands if node.rank >= position]
        equal = [graph.shapes.same(extent, wanted) for extent in extents]
        if not any(equal):
            return False
        if not all(hit or extent == 1 for hit, extent in zip(equal, extents, strict=True)):
            return False
    return True
