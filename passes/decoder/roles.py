"""Follows the axis of the tokens through the graph: who keeps tokens apart, who mixes them.

Every value between the tokens and the logits has one axis of extent outer * sequence * inner, on
which the tokens lie: `Lane`. An operator that sums, sorts, slices or shifts along it mixes
positions; outside the recognised attention none may.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tvm import relax, tirx

from graphc.codegen.rewrite import walk
from graphc.ir import Expr
from graphc.passes.cancel_arithmetic import uniform
from graphc.passes.cancel_layout import permutation
from graphc.passes.decoder.kernels import keeps_apart
from graphc.passes.decoder.specialise import NotADecoder, variables
from graphc.passes.graph import Graph
from graphc.passes.node import Node
from graphc.passes.shapes import dims_of


@dataclass(frozen=True)
class Lane:
    """Where the tokens lie in a value: on `axis`, whose extent is outer * sequence * inner."""

    axis: int
    outer: int = 1
    inner: int = 1

    @property
    def is_plain(self) -> bool:
        """Whether the axis holds one entry for each token."""
        return self.outer == self.inner == 1


class Mixes(NotADecoder):
    """A node lets tokens of different positions meet outside a recognised attention."""

    def __init__(self, node: Node, how: str) -> None:
        super().__init__(f"{node.name} ({node.op}) mixes positions: {how}")


class Lanes:
    """Lanes of the nodes of one graph; `sites` are the attentions, which may mix."""

    def __init__(
        self, graph: Graph, length: tirx.Var, sites: Collection[Node], tokens: Collection[Node]
    ) -> None:
        self.graph, self._length = graph, length
        self._sites, self._tokens = set(sites), tokens
        self.known: dict[Node, Lane | None] = {}

    def find(self, nodes: Sequence[Node]) -> dict[Node, Lane | None]:
        """The lane of each node, None without one; raises Mixes."""
        for node in nodes:
            self.known[node] = self._lane(node)
        return self.known

    def _lane(self, node: Node) -> Lane | None:
        if not node.is_tensor:
            return self._tuple(node)
        axes = [a for a, extent in enumerate(node.shape) if self._length in variables(extent)]
        if not axes:
            self._check_gone(node)
            return None
        if len(axes) > 1:
            raise Mixes(node, "it pairs every token with every other")
        (axis,) = axes
        sources = {s: self.known[s] for s in node.inputs if self.known.get(s) is not None}
        if node in self._sites or not sources or self._is_count(node):
            return self._plain(node, axis)
        rule = _RULES.get(node.op, _unknown if node.op not in _ELEMENTWISE else _aligned)
        lane = rule(self, node, axis)
        if lane is None:
            raise Mixes(node, "its tokens do not stay in their places")
        return lane

    def _tuple(self, node: Node) -> Lane | None:
        """The lane in every field of a split or of a kernel's results."""
        lane = self.known.get(node.inputs[0])
        if lane is None or not isinstance(node.ty, relax.TupleType):
            return None
        if node.op == "call_tir":
            axes = [self._axis(dims_of(field.shape.values)) for field in node.ty.fields]
            if len(set(axes)) != 1 or axes[0] is None:
                raise Mixes(node, "its results have their tokens on different axes")
            return _kernel(self, node, axes[0], len(axes))
        if int(getattr(node.attrs, "axis", lane.axis)) % node.inputs[0].rank == lane.axis:
            raise Mixes(node, "it works along the tokens")
        return lane

    def _axis(self, shape: Sequence[Expr]) -> int | None:
        """The axis of the tokens in a shape."""
        axes = [axis for axis, extent in enumerate(shape) if self._length in variables(extent)]
        return axes[0] if len(axes) == 1 else None

    def _check_gone(self, node: Node) -> None:
        is_gone = any(self.known.get(source) is not None for source in node.inputs)
        if is_gone and node in self._tokens:
            raise Mixes(node, "it makes one value of all tokens")

    def _plain(self, node: Node, axis: int) -> Lane:
        """The lane of a value that is given or made from no other lane."""
        count = self._per_token(node.shape[axis])
        if count is None:
            raise Mixes(node, f"its extent {node.shape[axis]} is no multiple of the tokens")
        return Lane(axis, 1, count)

    def _is_count(self, node: Node) -> bool:
        """Whether a sum along the tokens numbers them, which positions do too."""
        return node.op == "cumsum" and uniform(self.graph, node.inputs[0]) is not None

    def _per_token(self, extent: Expr) -> int | None:
        """c if the extent is c * sequence."""
        if self.graph.shapes.same(extent, self._length):
            return 1
        for factor in _divisors_in(extent):
            if self.graph.shapes.same(extent, self._length * factor):
                return factor
        return None

    def of(self, node: Node) -> Lane | None:
        """The lane of an input of the node at hand."""
        return self.known.get(node)


def _divisors_in(extent: Expr) -> list[int]:
    """Whole factors worth trying: products of the numbers in the expression."""
    numbers = [int(part.value) for part in walk(extent) if isinstance(part, tirx.IntImm)]
    return sorted({*numbers, math.prod(numbers)})


Rule = Callable[[Lanes, Node, int], "Lane | None"]


def _aligned(lanes: Lanes, node: Node, axis: int) -> Lane | None:
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
    """gather_nd from a table by indices [.., tokens, .., k]."""
    data, index = node.inputs
    lane = lanes.of(index)
    if lanes.of(data) is not None or lane is None or lane.axis == index.rank - 1:
        return None
    return lane if lane.axis == axis else None


def _sliced(lanes: Lanes, node: Node, axis: int) -> Lane | None:
    source = node.inputs[0]
    lane = lanes.of(source)
    if lane is None or lane.axis != axis:
        return None
    whole = lanes.graph.shapes.same(source.shape[axis], node.shape[axis])
    return lane if whole else None


def _joined(lanes: Lanes, node: Node, axis: int) -> Lane | None:
    along = 0 if node.attrs.axis is None else int(node.attrs.axis) % node.rank
    return None if along == axis else _aligned(lanes, node, axis)


def _repeated(lanes: Lanes, node: Node, axis: int) -> Lane | None:
    lane = _same(lanes, node, axis)
    along = node.attrs.axis
    return lane if along is not None and int(along) % node.rank != axis else None


def _kernel(lanes: Lanes, node: Node, axis: int, results: int = 1) -> Lane | None:
    """A kernel of loops: every tensor has its tokens on one axis and is read there in step."""
    found = [lanes.of(source) for source in node.inputs]
    shapes = {(lane.outer, lane.inner) for lane in found if lane is not None}
    if len(shapes) != 1:
        return None
    axes = [None if lane is None else lane.axis for lane in found]
    if not keeps_apart(lanes.graph.kernel(node), [*axes, *[axis] * results]):
        raise Mixes(node, "its kernel reads along the tokens")
    return Lane(axis, *shapes.pop())


def _unknown(lanes: Lanes, node: Node, axis: int) -> Lane | None:
    raise NotADecoder(f"{node.name} ({node.op}) is not known to keep positions apart")


_ELEMENTWISE = frozenset(
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
_RULES: dict[str, Rule] = {
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
    "call_tir": _kernel,
    "tuple_get_item": lambda lanes, node, axis: lanes.of(node.inputs[0]),
}  # fmt: skip
