"""Recognise scaled dot-product attention in its exported spellings as one operator.

    permute(softmax(permute(q) * c @ permute(k) * c + mask) @ permute(v))
        ----->   attention(q, k, v, bias)   with q, k, v as [batch, position, head, feature]

Anchored at the product of a softmax with the values, then peeled towards the inputs:
- an IsNaN guard around the softmax becomes the attribute `guard`; casts around a softmax in
  float32 vanish, for that is how the operator computes it;
- numbers that multiply or divide q, k or the scores are gathered in the attribute `scale`;
  (q a)(k b) and (q k) ab differ by rounding only;
- what is added to the scores becomes `bias`. where(mask, scores, c) becomes the bias
  where(mask, 0, c). That is exact for c = -inf, and for any c <= -1e20 too: adding a finite score
  below half a unit in the last place of c (over 1e12) gives c itself, as where does, also in rows
  that are masked throughout;
- transposes of q, k, v vanish in the operator's layout, keys repeated for grouped heads too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm
from tvm import relax

from graphc.ir import Expr, Model
from graphc.passes.attention import Attention, attention_function
from graphc.passes.cancel_arithmetic import scalar_like, uniform
from graphc.passes.cancel_layout import permutation, permute_to, reshape_to
from graphc.passes.graph import Graph, rewrite
from graphc.passes.node import Node
from graphc.passes.report import Report

_SWALLOWS = -1e20
_HEADS = 2  # the axis of the heads in [b, s, h, d]


class _Refused(Exception):
    """Why something that begins like attention is not taken as such."""


@dataclass(frozen=True)
class _Scores:
    product: Node
    scale: float
    biases: tuple[Node, ...]


@dataclass(frozen=True)
class _Operand:
    """A tensor in the operator's layout, times a number."""

    node: Node
    scale: float


def recognise_attention(model: Model, report: Report) -> Model:
    """Recognise attention in every function of the model."""
    return rewrite(model, lambda graph: _recognise(graph, report))


def _recognise(graph: Graph, report: Report) -> None:
    for node in graph.walk():
        if node.op != "matmul":
            continue
        weights = _weights(graph, node.inputs[0])
        softmax = weights[-1]
        if softmax.op != "nn.softmax":
            continue
        try:
            graph.replace(node, _attention(graph, node, weights))
        except _Refused as reason:
            report.miss(f"attention: softmax at {softmax.name} not recognised: {reason}")
        else:
            report.hit("recognise_attention")


def _attention(graph: Graph, node: Node, weights: Sequence[Node]) -> Node:
    softmax, guard = weights[-1], any(value.op == "where" for value in weights)
    _check_private(graph, node, weights)
    scores = _scores(graph, softmax.inputs[0])
    left, right = scores.product.inputs
    rank = scores.product.rank
    if rank not in (3, 4) or any(value.rank != rank for value in (left, right, node.inputs[1])):
        raise _Refused(
            f"queries, keys and values do not all have {rank} axes, which must be 3 or 4"
        )
    q = _operand(graph, left, (0, 2, 1, 3), grouped=False)
    k = _operand(graph, right, (0, 3, 1, 2))
    v = _operand(graph, node.inputs[1], (0, 2, 1, 3), scaled=False)
    if not graph.shapes.same(k.node.shape[_HEADS], v.node.shape[_HEADS]):
        k = _operand(graph, right, (0, 3, 1, 2), grouped=False)
        v = _operand(graph, node.inputs[1], (0, 2, 1, 3), scaled=False, grouped=False)
    _check_shapes(graph, q.node, k.node, v.node)
    operands = [q.node, k.node, v.node]
    extents = (*(q.node.shape[axis] for axis in (0, 2, 1)), k.node.shape[1])
    biases = [_bias(graph, bias, rank, extents) for bias in scores.biases]
    if biases:
        operands.append(_sum(graph, biases))
    attention = Attention(scores.scale * q.scale * k.scale, guard)
    function = attention_function(
        attention, graph.shapes, q.node.dtype, [operand.shape for operand in operands]
    )
    callee = graph.function(function, "attention")
    result = graph.emit(tvm.ir.Call(callee, [operand.var for operand in operands]), node.name)
    return reshape_to(graph, permute_to(graph, result, (0, 2, 1, 3)), node.shape)


def _weights(graph: Graph, node: Node) -> list[Node]:
    """From the attention weights to the softmax: through a guard and a cast, if there are any."""
    path = [node]
    while True:
        if node.op == "astype" and node.inputs[0].dtype == "float32":
            node = node.inputs[0]
        elif node.op == "where" and _is_guard(graph, node):
            node = node.inputs[2]
        else:
            return path
        path.append(node)


def _is_guard(graph: Graph, node: Node) -> bool:
    """Whether it is where(isnan(x), 0, x)."""
    condition, zero, value = node.inputs
    return condition.op == "isnan" and condition.inputs[0] is value and uniform(graph, zero) == 0


def _check_private(graph: Graph, node: Node, weights: Sequence[Node]) -> None:
    """Refuse if anything but this product reads the attention weights."""
    softmax = weights[-1]
    if int(softmax.attrs.axis) % softmax.rank != softmax.rank - 1:
        raise _Refused(f"it is over axis {softmax.attrs.axis}, not over the keys")
    inside = {node, *weights}
    for value in weights:
        if value in graph.outputs:
            raise _Refused("the attention weights are an output")
        for user in value.users:
            if user not in inside and user.op != "isnan":
                raise _Refused(f"the attention weights are also used by {user.name} ({user.op})")


# Scores


def _scores(graph: Graph, node: Node) -> _Scores:
    """Peel scale and masks off the scores, from the softmax to the product of q and k."""
    scale = 1.0
    biases: list[Node] = []
    while node.op != "matmul":
        factor = _factor(graph, node)
        if factor is not None:
            node, number = factor
            scale *= number
            continue
        if node.op == "astype" and node.dtype == "float32":
            node = node.inputs[0]
            continue
        if node.op == "add":
            node, bias = _split_sum(graph, node)
        elif node.op == "where":
            node, bias = _split_choice(graph, node)
        else:
            raise _Refused(f"its scores come from {node.op} at {node.name}")
        biases.append(_scaled(graph, bias, scale))
    return _Scores(node, scale, tuple(biases))


def _factor(graph: Graph, node: Node) -> tuple[Node, float] | None:
    """x and c if the node is x * c or x / c."""
    if node.op not in ("multiply", "divide"):
        return None
    pairs = [node.inputs, node.inputs[::-1]] if node.op == "multiply" else [node.inputs]
    for x, constant in pairs:
        number = graph.scalar(constant)
        if number is not None and number != 0 and graph.shapes.same_all(x.shape, node.shape):
            return x, (number if node.op == "multiply" else 1 / number)
    return None


def _split_sum(graph: Graph, node: Node) -> tuple[Node, Node]:
    """The operand that leads to the scores, and the other one."""
    left, right = node.inputs
    for scores, bias in ((left, right), (right, left)):
        if _leads_to_product(graph, scores) and graph.shapes.same_all(scores.shape, node.shape):
            return scores, bias
    raise _Refused(f"neither operand of the sum {node.name} is a product of queries and keys")


def _split_choice(graph: Graph, node: Node) -> tuple[Node, Node]:
    """The scores in where(mask, scores, c), and where(mask, 0, c) to be added to them."""
    condition, yes, no = node.inputs
    for scores, fill, keeps in ((yes, no, True), (no, yes, False)):
        value = uniform(graph, fill)
        if value is None:
            continue
        if not value <= _SWALLOWS:
            raise _Refused(
                f"{node.name} masks with {value:g}, which is too close to ordinary scores to be "
                f"added instead (at most {_SWALLOWS:g})"
            )
        if not graph.shapes.same_all(scores.shape, node.shape):
            raise _Refused(f"the mask of {node.name} is larger than the scores")
        zero = graph.emit(relax.const(0.0, "float32"))
        filled = scalar_like(graph, value, zero)
        branches = (zero, filled) if keeps else (filled, zero)
        return scores, graph.emit(
            relax.op.where(condition.var, branches[0].var, branches[1].var), f"{node.name}_bias"
        )
    raise _Refused(f"{node.name} masks the scores with a value that is not constant")


def _leads_to_product(graph: Graph, node: Node) -> bool:
    stack = [node]
    while stack:
        top = stack.pop()
        if top.op == "matmul":
            return True
        factor = _factor(graph, top)
        if factor is not None:
            stack.append(factor[0])
        elif top.op in ("add", "where", "astype"):
            stack.extend(top.inputs)
    return False


def _scaled(graph: Graph, bias: Node, scale: float) -> Node:
    """A bias that was added before the scores were scaled."""
    if scale == 1.0:
        return bias
    return graph.emit(relax.op.multiply(bias.var, scalar_like(graph, scale, bias).var))


def _bias(graph: Graph, bias: Node, rank: int, extents: tuple[Expr, ...]) -> Node:
    """The bias as [b|1, h|1, s|1, t] in float32; extents are (b, h, s, t)."""
    if bias.op == "broadcast_to":
        small = bias.inputs[0]
        if small.rank and graph.shapes.same(small.shape[-1], extents[-1]):
            bias = small  # the operator broadcasts by itself
    if bias.rank and graph.shapes.same(bias.shape[-1], 1):  # but not over the keys
        wide = (*bias.shape[:-1], extents[-1])
        bias = graph.emit(relax.op.broadcast_to(bias.var, wide), f"{bias.name}_wide")
    shape: list[Expr] = [1] * (rank - bias.rank) + list(bias.shape)
    if rank == 3:
        shape.insert(1, 1)
    if not graph.shapes.same(shape[-1], extents[-1]):
        raise _Refused(f"the mask {bias.name} does not extend over the keys: {_shown(bias.shape)}")
    for dim, extent in zip(shape[:-1], extents[:-1], strict=True):
        if dim != 1 and not graph.shapes.same(dim, extent):
            raise _Refused(
                f"the mask {bias.name} of shape {_shown(bias.shape)} does not fit the scores "
                f"{_shown(extents)}"
            )
    if bias.dtype != "float32":
        bias = graph.emit(relax.op.astype(bias.var, "float32"))
    return reshape_to(graph, bias, shape)


def _sum(graph: Graph, biases: Sequence[Node]) -> Node:
    total = biases[0]
    for bias in biases[1:]:
        total = graph.emit(relax.op.add(total.var, bias.var))
    return total


# Queries, keys and values


def _operand(
    graph: Graph,
    node: Node,
    axes: tuple[int, ...],
    *,
    scaled: bool = True,
    grouped: bool = True,
) -> _Operand:
    """Peel numbers, transposes and repeated heads off q, k or v.

    `axes` lead from the four axes of `node` to [b, s, h, d]; a tensor of three has one head.
    """
    headless = node.rank == 3
    order = [axis - (axis > 1) for axis in axes if axis != 1] if headless else list(axes)
    scale = 1.0
    while True:
        factor = _factor(graph, node) if scaled else None
        if factor is not None:
            node, number = factor
            scale *= number
        elif node.op == "permute_dims":
            moved = permutation(node)
            order = [moved[axis] for axis in order]
            node = node.inputs[0]
        else:
            fewer = None
            if grouped and not headless:
                fewer = _unrepeated(graph, node, order[_HEADS])
            if fewer is None:
                break
            node = fewer
    node = permute_to(graph, node, order)
    if headless:
        batch, length, depth = node.shape
        node = reshape_to(graph, node, (batch, length, 1, depth))
    return _Operand(node, scale)


def _unrepeated(graph: Graph, node: Node, axis: int) -> Node | None:
    """[b, hk, t, d] in repeat_kv, which is reshape(broadcast([b, hk, 1, t, d]))."""
    if node.op == "repeat":
        along = node.attrs.axis
        return node.inputs[0] if along is not None and int(along) % node.rank == axis else None
    if node.op != "reshape" or node.inputs[0].op != "broadcast_to":
        return None
    wide = node.inputs[0]
    narrow = wide.inputs[0]
    if narrow.rank != 5 or wide.rank != 5 or narrow.shape[axis + 1] != 1:
        return None
    kept = [*narrow.shape[: axis + 1], *narrow.shape[axis + 2 :]]
    spread = [*wide.shape[: axis + 1], *wide.shape[axis + 2 :]]
    same = graph.shapes.same_all
    others = [*node.shape[:axis], *node.shape[axis + 1 :]]
    if not same(kept, spread) or not same([*kept[:axis], *kept[axis + 1 :]], others):
        return None
    return reshape_to(graph, narrow, kept)


def _check_shapes(graph: Graph, q: Node, k: Node, v: Node) -> None:
    same = graph.shapes.same
    if not same(q.shape[0], k.shape[0]) or not same(k.shape[0], v.shape[0]):
        raise _Refused("queries, keys and values are not of one batch")
    if not same(q.shape[3], k.shape[3]) or not same(k.shape[1], v.shape[1]):
        raise _Refused(
            f"q {_shown(q.shape)}, k {_shown(k.shape)} and v {_shown(v.shape)} do not fit together"
        )
    heads, groups = q.shape[_HEADS], k.shape[_HEADS]
    if isinstance(heads, int) and isinstance(groups, int):
        if heads % groups:
            raise _Refused(f"{groups} key heads do not divide {heads} query heads")
    elif not same(heads, groups):
        raise _Refused(f"the numbers of heads {heads} and {groups} are not provably equal")
    if not same(groups, v.shape[_HEADS]):
        raise _Refused("keys and values have different numbers of heads")
    if len({q.dtype, k.dtype, v.dtype}) > 1:
        raise _Refused(f"q, k and v are of types {q.dtype}, {k.dtype} and {v.dtype}")


def _shown(shape: Sequence[Expr]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
