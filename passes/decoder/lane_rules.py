"""Where the tokens lie in the result of each operator, given where they lie in its inputs.

A rule answers with the lane, or None where the tokens do not stay in their places.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from graphc.ir import Expr
from graphc.passes.cancel_layout import permutation
from graphc.passes.decoder.kernels import keeps_apart
from graphc.passes.decoder.lane import Lane, Mixes
from graphc.passes.decoder.specialise import NotADecoder
from graphc.passes.node import Node

if TYPE_CHECKING:
    from graphc.passes.decoder.roles import Lanes

Rule = Callable[["Lanes", Node, int], "Lane | None"]


def aligned(lanes: Lanes, node: Node, axis: int) -> Lane | None:
    """Elementwise with broadcasting: the lanes of all operands fall on each other."""
    found = set()
    for source in node.inputs:
        lane = lanes.of(source)
        if lane is not None:
            found.add(Lane(lane.axis + node.rank - source.rank, lane.outer, lane.inner))
    (lane, *others) = found
    return None if others or lane.axis != axis else lane


def _same(lanes: Lanes, node: Node, axis: int) -> Lane | None:
    """The first input's own lane, for operators that work along other axes."""
    lane = lanes.of(node.inputs[0])
    return lane if lane is not None and lane.axis == axis else None


def _along(name: str) -> Rule:
    """An operator that works along the axis or axes in an attribute, which must be others."""

    def rule(lanes: Lanes, node: Node, axis: int) -> Lane | None:
        source = node.inputs[0]
        lane = lanes.of(source)
        value = getattr(node.attrs, name)
        if lane is None or value is None:
            return None
        axes = [value] if not hasattr(value, "__len__") else list(value)
        worked = {int(each) % source.rank for each in axes}
        if lane.axis in worked:
            return None
        gone = sum(each < lane.axis for each in worked) if node.rank < source.rank else 0
        return Lane(lane.axis - gone, lane.outer, lane.inner)

    return rule


def _permuted(lanes: Lanes, node: Node, axis: int) -> Lane | None:
    lane = lanes.of(node.inputs[0])
    if lane is None or permutation(node)[axis] != lane.axis:
        return None
    return Lane(axis, lane.outer, lane.inner)


def _reshaped(lanes: Lanes, node: Node, axis: int) -> Lane | None:
    """Row-major order: what lies before and behind a token in memory stays there."""
    lane = lanes.of(node.inputs[0])
    source = node.inputs[0]
    if lane is None:
        return None
    before = _count(source.shape[: lane.axis]) * lane.outer
    behind = _count(source.shape[lane.axis + 1 :]) * lane.inner
    new_before, new_behind = _count(node.shape[:axis]), _count(node.shape[axis + 1 :])
    if new_before == 0 or new_behind == 0 or before % new_before or behind % new_behind:
        return None
    return Lane(axis, before // new_before, behind // new_behind)


def _count(extents: Sequence[Expr]) -> int:
    fixed = [extent for extent in extents if isinstance(extent, int)]
    assert len(fixed) == len(extents), extents
    return math.prod(fixed)


def _product(lanes: Lanes, node: Node, axis: int) -> Lane | None:
    """A lane may be a row, a column or a batch of a product, never what is summed over."""
    left, right = node.inputs
    found = set()
    for source, summed in ((left, left.rank - 1), (right, max(right.rank - 2, 0))):
        lane = lanes.of(source)
        if lane is None:
            continue
        if lane.axis == summed:
            raise Mixes(node, "it sums over the tokens")
        found.add(Lane(axis, lane.outer, lane.inner))
        if lane.axis + node.rank - source.rank != axis:
            return None
    return found.pop() if len(found) == 1 else None


def _taken(lanes: Lanes, node: Node, axis: int) -> Lane | None:
    data, index = node.inputs
    along = 0 if node.attrs.axis is None else int(node.attrs.axis) % data.rank
    lane = lanes.of(index)
    if lane is not None:
        return None if lanes.of(data) is not None else Lane(axis, lane.outer, lane.inner)
    lane = lanes.of(data)
    if lane is None or lane.axis == along:
        return None
    return Lane(axis, lane.outer, lane.inner)


def _gathered(lanes: Lanes, node: Node, axis: int) -> Lane | None:
    """gather_elements and scatter_elements: every operand has its tokens on the same axis."""
    along = int(node.attrs.axis) % node.rank
    found = {lanes.of(source) for source in node.inputs} - {None}
    if along == axis or len(found) != 1:
        return None
    return found.pop()


def _looked_up(lanes: Lanes, node: Node, axis: int) -> Lane | None:
    """gather_nd: the tokens lie in the indices [.., k], or in the data behind the k axes."""
    data, index = node.inputs
    lane = lanes.of(index)
    if int(node.attrs.batch_dims) != 0 or (lane is not None and lanes.of(data) is not None):
        return None
    if lane is not None:
        return lane if lane.axis == axis and axis < index.rank - 1 else None
    lane, depth = lanes.of(data), index.shape[-1]
    if lane is None or not isinstance(depth, int) or lane.axis < depth:
        return None
    place = index.rank - 1 + lane.axis - depth
    return Lane(axis, lane.outer, lane.inner) if place == axis else None


def _sliced(lanes: Lanes, node: Node, axis: int) -> Lane | None:
    source = node.inputs[0]
    lane = lanes.of(source)
    if lane is None or lane.axis != axis:
        return None
    whole = lanes.graph.shapes.same(source.shape[axis], node.shape[axis])
    return lane if whole else None


def _joined(lanes: Lanes, node: Node, axis: int) -> Lane | None:
    along = 0 if node.attrs.axis is None else int(node.attrs.axis) % node.rank
    return None if along == axis else aligned(lanes, node, axis)


def _repeated(lanes: Lanes, node: Node, axis: int) -> Lane | None:
    lane = _same(lanes, node, axis)
    along = node.attrs.axis
    return lane if along is not None and int(along) % node.rank != axis else None


def of_kernel(lanes: Lanes, node: Node, axis: int, results: int = 1) -> Lane | None:
    """A kernel of loops: every tensor has its tokens on one axis and is read there in step."""
    found = [lanes.of(source) for source in node.inputs]
    shapes = {(lane.outer, lane.inner) for lane in found if lane is not None}
    if len(shapes) != 1:
        return None
    axes = [None if lane is None else lane.axis for lane in found]
    if not keeps_apart(lanes.graph.kernel(node), [*axes, *[axis] * results]):
        raise Mixes(node, "its kernel reads along the tokens")
    return Lane(axis, *shapes.pop())


def unknown(lanes: Lanes, node: Node, axis: int) -> Lane | None:
    raise NotADecoder(f"{node.name} ({node.op}) is not known to keep positions apart")


ELEMENTWISE = frozenset(
    {
        "abs", "add", "astype", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor",
        "call_pure_packed", "ceil", "clip", "cos", "cosh", "divide", "equal", "erf", "exp",
        "floor", "floor_divide", "floor_mod", "greater", "greater_equal", "isfinite", "isinf",
        "isnan", "left_shift", "less", "less_equal", "log", "logical_and", "logical_not",
        "logical_or", "logical_xor", "match_cast", "maximum", "minimum", "mod", "multiply",
        "negative", "nn.gelu", "nn.gelu_tanh", "nn.leakyrelu", "nn.relu", "nn.selu", "nn.silu",
        "nn.softplus", "not_equal", "power", "right_shift", "round", "rsqrt", "sigmoid", "sign",
        "sin", "sinh", "sqrt", "square", "subtract", "tan", "tanh", "where", "broadcast_to",
    }
)  # fmt: skip
RULES: dict[str, Rule] = {
    "reshape": _reshaped,
    "expand_dims": _reshaped,
    "squeeze": _reshaped,
    "flatten": _reshaped,
    "permute_dims": _permuted,
    "matmul": _product,
    "take": _taken,
    "gather_elements": _gathered,
    "scatter_elements": _gathered,
    "gather_nd": _looked_up,
    "strided_slice": _sliced,
    "concat": _joined,
    "repeat": _repeated,
    **{name: _along("axis") for name in ("sum", "mean", "max", "min", "prod", "argmax", "argmin",
       "variance", "std", "cumsum", "nn.softmax", "nn.log_softmax", "argsort", "sort", "topk",
       "flip")},
    **{name: _along("axes") for name in ("nn.rms_norm", "nn.layer_norm")},
    "one_hot": _same,
    "call_tir": of_kernel,
    "tuple_get_item": lambda lanes, node, axis: lanes.of(node.inputs[0]),
}  # fmt: skip
