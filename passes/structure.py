"""What a model is made of, read off the graph after the passes: attention, norms, MLPs, precision.

Nothing is taken from names: queries, keys and masks are followed through the dataflow, and a mask
is told by its values at small sizes (masks.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from graphc.codegen.kernel import is_contraction, read_kernel
from graphc.ir import Model
from graphc.passes import masks
from graphc.passes.attention import COMPOSITE
from graphc.passes.graph import Graph
from graphc.passes.node import Node

NORMS = ("layer_norm", "rms_norm", "group_norm", "instance_norm", "batch_norm")
ACTIVATIONS = (
    "gelu", "gelu_tanh", "silu", "relu", "leakyrelu", "tanh", "sigmoid", "softplus", "square"
)  # fmt: skip
# What the values pass through unmixed on the way from a projection to the attention.
_MOVES = (
    "reshape", "astype", "permute_dims", "strided_slice", "tuple_get_item", "split", "expand_dims",
    "squeeze", "round", "clip",
)  # fmt: skip
_SCALES = ("add", "subtract", "multiply", "divide", "maximum", "minimum")
_BARRIERS = ("matmul", "nn.conv1d", "nn.conv2d", "take", "nn.softmax")


@dataclass(frozen=True)
class AttentionInfo:
    """`layers` alike: heads, their widths, what they see, how positions enter, where keys are kept.

    kind: "MHA", "GQA" or "MQA"; mask: see masks.py; rotary: "", "halves" or "interleaved";
    cache: "none", "past_key_values" (old and new joined) or "written in place".
    """

    layers: int
    kind: str
    cross: bool
    heads: int | str
    kv_heads: int | str
    head_size: int | str
    value_size: int | str
    mask: str
    rotary: str
    cache: str


@dataclass(frozen=True)
class Structure:
    """`causal`: whether attention over own positions is: "yes", "partly", "no" or "" without any.

    norms and mlps are counts by kind; `unrecognised` softmaxes are multiplied with values in
    another form than attention; weights: bytes by element type; contractions: by operand type.
    """

    attention: tuple[AttentionInfo, ...]
    unrecognised: int
    causal: str
    norms: dict[str, int]
    mlps: dict[str, int]
    weights: dict[str, int]
    contractions: dict[str, int]
    operators: dict[str, int]


def structure(model: Model, name: str = "main") -> Structure:
    """Of one function of a model on which the graph passes have run."""
    graph = Graph(model, name)
    nodes = graph.nodes()
    found = [node for node in nodes if _composite(graph, node) == COMPOSITE]
    reader = masks.MaskReader(graph)
    attention = Counter(_attention(graph, node, reader) for node in found)
    kinds = tuple(AttentionInfo(layers, *description) for description, layers in attention.items())
    return Structure(
        attention=kinds,
        unrecognised=sum(1 for node in nodes if _is_plain_attention(node)),
        causal=_causal([info for info in kinds if not info.cross]),
        norms=_counted(node.op.rpartition(".")[2] for node in nodes if _is_norm(node)),
        mlps=_counted(kind for node in nodes if (kind := _mlp(graph, node))),
        weights=_bytes(nodes),
        contractions=_counted(
            "x".join(dict.fromkeys(source.dtype for source in node.inputs[:2]))
            for node in nodes
            if node.op in ("matmul", "nn.conv2d", "nn.conv1d", "nn.conv2d_transpose")
        ),
        operators=_counted(
            node.op if node.op != "call" else _composite(graph, node) or "call"
            for node in nodes
            if node.op not in ("input", "param", "const", "match_cast")
        ),
    )


def _causal(own: Sequence[AttentionInfo]) -> str:
    answers = {"causal" in info.mask for info in own}
    return "partly" if len(answers) > 1 else "yes" if True in answers else "no" if own else ""


def _counted(names: Iterator[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())


def _bytes(nodes: Sequence[Node]) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for node in nodes:
        if node.op == "param" and node.static_shape is not None:
            elements = 1
            for extent in node.static_shape:
                elements *= extent
            bits = int(node.expr.ty.dtype.bits) if hasattr(node.expr.ty.dtype, "bits") else 0
            sizes[node.dtype] += elements * max(1, (bits or _bits(node.dtype)) // 8)
    return dict(sizes.most_common())


def _bits(dtype: str) -> int:
    digits = "".join(c for c in dtype if c.isdigit())
    return int(digits) if digits else 8


def _composite(graph: Graph, node: Node) -> str:
    """The name of the composite operator that a call is, "" for all else."""
    if node.op != "call":
        return ""
    attrs = graph.model.mod[node.expr.op].attrs
    return str(attrs["Composite"]) if attrs is not None and "Composite" in attrs else ""


# -- attention -----------------------------------------------------------------------------


def _attention(
    graph: Graph, node: Node, reader: masks.MaskReader
) -> tuple[str, bool, int | str, int | str, int | str, int | str, str, str, str]:
    q, k, v, *bias = node.inputs
    heads, kv_heads = _extent(q, 2), _extent(k, 2)
    kind = "MHA" if heads == kv_heads else "MQA" if kv_heads == 1 else "GQA"
    cross = _is_cross(graph, q, k)
    mask = reader.kind(bias[0], q.shape[1], k.shape[1]) if bias else "none"
    callee = graph.model.mod[node.expr.op]
    if bool(callee.attrs["causal"]):
        mask = "causal" if mask == "none" else f"causal, {mask}"
    sizes = (heads, kv_heads, _extent(q, 3), _extent(v, 3))
    return kind, cross, *sizes, mask, _rotary(graph, q), _cache(graph, k)


def _extent(node: Node, axis: int) -> int | str:
    extent = node.shape[axis]
    return extent if isinstance(extent, int) else str(extent)


def _leaves(node: Node) -> set[Node]:
    """The inputs of the graph that a value depends on."""
    seen, stack = {node}, [node]
    while stack:
        for source in stack.pop().inputs:
            if source not in seen:
                seen.add(source)
                stack.append(source)
    return {each for each in seen if each.op == "input"}


def _is_cross(graph: Graph, q: Node, k: Node) -> bool:
    """Keys come from something else than queries do: an input of the queries is none of theirs,
    or the queries are constants, or the lengths are independent and nothing is remembered."""
    queries, keys = _leaves(q), _leaves(k)
    if not queries <= keys or (keys and not queries):
        return True
    same = graph.shapes.same(q.shape[1], k.shape[1])
    return not same and _cache(graph, k) == "none"


def _region(graph: Graph, node: Node) -> list[Node]:
    """What the value is made of since it was last projected, looked up or normalised."""
    seen, stack = {node}, [node]
    while stack:
        top = stack.pop()
        if top is not node and (top.op in _BARRIERS or _is_product(graph, top)):
            continue
        for source in top.inputs:
            if source not in seen and not _is_single(source):  # not to the range of a whole tensor
                seen.add(source)
                stack.append(source)
    return list(seen)


def _rotary(graph: Graph, q: Node) -> str:
    """x cos + rotated(x) sin: pairs are negated and swapped, by halves or by neighbours."""
    region = _region(graph, q)
    negated = [n for n in region if n.op in ("negative", "subtract", "multiply")]
    for node in region:
        if node.op == "concat" and len(node.inputs) == 2:
            first = node.inputs[0]
            if first.op == "negative" or _minus_one(first):
                return "interleaved" if node.rank > q.rank else "halves"
            if {n.op for n in node.inputs} == {"subtract", "add"}:
                return "interleaved" if node.rank > q.rank else "halves"
    if negated and any(_strides_by_two(node) for node in region):
        return "interleaved"
    return ""


def _minus_one(node: Node) -> bool:
    return node.op == "multiply" and any(
        source.op == "const"
        and source.static_shape == ()
        and float(source.expr.value.numpy()) == -1
        for source in node.inputs
    )


def _is_product(graph: Graph, node: Node) -> bool:
    """A composite operator, or a kernel that sums products."""
    if node.op != "call_tir":
        return node.op == "call"
    kernel = read_kernel(graph.kernel(node), node.name)
    return kernel is not None and any(is_contraction(stage) for stage in kernel.stages)


def _strides_by_two(node: Node) -> bool:
    if node.op != "strided_slice" or len(node.args) < 5:
        return False
    steps = getattr(node.args[4], "fields", getattr(node.args[4], "values", []))
    return any(getattr(step, "value", 1) == 2 for step in steps)


def _cache(graph: Graph, k: Node) -> str:
    """Keys that came in as an input, unprojected: joined with the new ones, or written over."""
    region = _region(graph, k)
    if not any(node.op == "input" and node.rank >= 3 for node in region):
        return "none"
    joined = any(
        node.op == "concat" and any(_is_remembered(graph, source) for source in node.inputs)
        for node in region
    )
    return "past_key_values" if joined else "written in place"


def _is_remembered(graph: Graph, node: Node) -> bool:
    return any(each.op == "input" and each.rank >= 3 for each in _region(graph, node))


def _is_plain_attention(node: Node) -> bool:
    """A softmax whose result weighs values in a form that was not recognised."""
    if node.op != "nn.softmax":
        return False
    pending, seen = list(node.users), set[Node]()
    while pending:
        user = pending.pop()
        if user.op == "matmul":
            return True
        if user not in seen and user.op in ("astype", "where", "multiply", "reshape"):
            seen.add(user)
            pending.extend(user.users)
    return False


# -- norms and MLPs ------------------------------------------------------------------------


def _is_norm(node: Node) -> bool:
    return node.op.startswith("nn.") and node.op.removeprefix("nn.") in NORMS


def _mlp(graph: Graph, node: Node) -> str:
    """ "gated silu", "plain gelu" for a product whose operand is an activation of a product."""
    if not _is_weighted(graph, node):
        return ""
    value = _through(graph, node.inputs[0])
    activation = _activation(graph, value)
    if activation:
        return f"plain {activation}" if _from_product(graph, value) else ""
    if value.op != "multiply":
        return ""
    for gate, up in (value.inputs, value.inputs[::-1]):
        name = _activation(graph, _through(graph, gate))
        if name and _from_product(graph, gate) and _from_product(graph, up):
            return f"gated {name}"
    return ""


def _is_weighted(graph: Graph, node: Node) -> bool:
    """A product with a weight, which may be packed or quantised."""
    product = node.op in ("matmul", "nn.conv2d", "nn.conv1d") or _is_product(graph, node)
    return product and _composite(graph, node) != COMPOSITE and len(node.inputs) > 1


def _activation(graph: Graph, node: Node) -> str:
    name = node.op.rpartition(".")[2]
    if name not in ACTIVATIONS or not node.inputs:
        return ""
    if name != "square":
        return name
    inner = _activation(graph, _through(graph, node.inputs[0]))
    return f"squared {inner}" if inner else ""


def _through(graph: Graph, node: Node) -> Node:
    """Past what moves values, rounds them, or scales and shifts all of them alike."""
    while True:
        if node.op in _MOVES:
            node = node.inputs[0]
        elif node.op in _SCALES or (node.op == "call_tir" and not _is_product(graph, node)):
            varying = [s for s in node.inputs if not s.is_constant and not _is_single(s)]
            if len(varying) != 1:
                return node
            node = varying[0]
        else:
            return node


def _is_single(node: Node) -> bool:
    return node.static_shape is not None and math.prod(node.static_shape) == 1


def _from_product(graph: Graph, node: Node) -> bool:
    """Whether it is pointwise in the result of a product with a weight."""
    for _ in range(8):
        node = _through(graph, node)
        if _is_weighted(graph, node):
            return True
        if not _activation(graph, node):
            return False
        node = node.inputs[0]
    return False
