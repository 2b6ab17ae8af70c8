"""MoE and QMoE: each token goes through k of E feed-forward networks.

    g = softmax(router), 0 but for the k largest (which then sum to 1, if asked)
    y = sum over e of g[e] * (fc2[e] act(fc1[e] x))

Every expert is computed for every token and weighted with 0 where it was not chosen: exact, and
E / k times the work of a kernel that gathers tokens by expert.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx
from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.contrib.bits import block_size, unpack, width
from graphc.frontend.onnx.contrib.formula import DOMAIN, Formula, entry, fixed, shared
from graphc.frontend.onnx.contrib.scores import dims
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.ops import selection
from graphc.frontend.onnx.table import Result, Table
from graphc.frontend.onnx.values import Value
from graphc.ir import Expr

Layer = Callable[[relax.Expr], relax.Expr]
"""[e | 1, tokens, inputs] -> [e, tokens, outputs]"""


@dataclass(frozen=True)
class _Weights:
    """One of the two or three layers: experts, outputs and inputs, and what it computes."""

    experts: int
    outputs: int
    inputs: int
    apply: Layer


# -- MoE -----------------------------------------------------------------------------------


def _moe(context: Context, node: Node) -> Result:
    f = Formula(context, node)
    layers = [_dense(f, 2, 3), _dense(f, 4, 5)]
    gate = _dense(f, 6, 7) if node.optional(6) is not None else None
    return _mixed(f, layers[0], layers[1], gate, bool(node.integer("normalize_routing_weights", 0)))


def _dense(f: Formula, weights: int, bias: int) -> _Weights:
    value, added = f.node.input(weights), f.node.optional(bias)
    f.node.same_dtype(f.node.input(0), value)
    f.node.need_rank(value, 3, 3)
    experts, outputs, inputs = (fixed(f.node, n, "a layer's size") for n in value.shape)

    def apply(x: relax.Expr) -> relax.Expr:
        turned = f(op.permute_dims, f.context.expr(value), [0, 2, 1])
        y = f(op.matmul, x, turned, shape=[experts, dims(x)[1], outputs])
        return _with_bias(f, y, added, experts, outputs)

    return _Weights(experts, outputs, inputs, apply)


def _with_bias(
    f: Formula, y: relax.Expr, bias: Value | None, experts: int, outputs: int
) -> relax.Expr:
    if bias is None:
        return y
    row = f.reshape(f.fit(bias, (experts, outputs), "a bias"), [experts, 1, outputs])
    return f(op.add, y, f.cast(row, str(y.ty.dtype)))


# -- QMoE ----------------------------------------------------------------------------------


def _q_moe(context: Context, node: Node) -> Result:
    f = Formula(context, node)
    if node.text("quant_type", "int") != "int":
        raise node.unsupported("experts in 4- and 8-bit floats are not compiled, integers are")
    if node.integer("weights_prepacked", -1) == 1:
        raise node.unsupported("weights packed for a GPU kernel: export with weights_prepacked=0")
    layers = [_packed(f, "fc1", 2, 11), _packed(f, "fc2", 5, 12)]
    gate = _packed(f, "fc3", 8, 13) if node.optional(8) is not None else None
    # Without router_weights ONNX Runtime's CPU kernel makes the shares sum to 1 in any case.
    normal = bool(node.integer("normalize_routing_weights", 0)) or node.optional(14) is None
    return _mixed(f, layers[0], layers[1], gate, normal, node.optional(14))


def _packed(f: Formula, name: str, first: int, zero: int) -> _Weights:
    """Weights, scales and a bias from input `first` on; zero points in input `zero`."""
    node = f.node
    bits = width(node, f"{name}_expert_weight_bits", node.integer("expert_weight_bits", 4))
    weights, scales, bias = node.input(first), node.input(first + 1), node.optional(first + 2)
    zeros = node.optional(zero)
    if weights.dtype != "uint8" or (zeros is not None and zeros.dtype != "uint8"):
        raise node.error(f"the weights and zero points of {name} must be uint8")
    node.need_float(scales)
    node.need_rank(weights, 3, 3)
    experts, outputs, octets = (fixed(node, n, "a layer's size") for n in weights.shape)
    inputs = octets * 8 // bits
    size = block_size(node) if node.integer("block_size", 0) > 0 else inputs
    blocks = shared(node, inputs, size, "the inputs of a layer")
    by_block = node.integer("block_size", 0) > 0
    f.fit(scales, (experts, outputs, blocks)[: 3 if by_block else 2], f"the scales of {name}")
    if zeros is not None:
        row = (experts, outputs, -(-blocks * bits // 8)) if by_block else (
            experts, -(-outputs * bits // 8))  # fmt: skip
        f.fit(zeros, row, f"the zero points of {name}")

    def apply(x: relax.Expr) -> relax.Expr:
        lead, tokens, _ = dims(x)
        shape: list[Expr] = [experts, tokens, outputs]

        def product(a: te.Tensor, q: te.Tensor, s: te.Tensor, *z: te.Tensor) -> te.Tensor:
            k = te.reduce_axis((0, inputs), name="k")

            def weight(e: Any, n: Any) -> Any:
                block = tirx.floordiv(k, size)
                value = unpack(lambda at: q(e, n, at), k, bits)
                if not z:
                    point = tirx.const(1 << (bits - 1), "int32")
                elif by_block:
                    point = unpack(lambda at: z[0](e, n, at), block, bits)
                else:
                    point = unpack(lambda at: z[0](e, at), n, bits)
                scale = s(e, n, block) if by_block else s(e, n)
                return (value - point).astype("float32") * scale.astype("float32")

            return te.compute(
                shape,
                lambda e, t, n: te.sum(
                    a(0 if lead == 1 else e, t, k).astype("float32") * weight(e, n), axis=k
                ),
                name="expert_nbits",
            )

        operands: list[Value] = [f.known(x), weights, scales, *([zeros] if zeros else [])]
        made = f.context.emit_te(f"{f.name}.{name}", product, operands, shape, "expert_nbits")
        return _with_bias(f, made.var, bias, experts, outputs)

    return _Weights(experts, outputs, inputs, apply)


# -- what both share -----------------------------------------------------------------------


def _mixed(
    f: Formula,
    up: _Weights,
    down: _Weights,
    gate: _Weights | None,
    normal: bool,
    mixing: Value | None = None,
) -> Result:
    node, value, router = f.node, f.node.input(0), f.node.input(1)
    node.need_float(value)
    node.need_rank(value, 2, 3)
    if node.integer("use_sparse_mixer", 0):
        raise node.unsupported("use_sparse_mixer is not compiled")
    if node.integer("swiglu_limit_after_activation", 0):
        raise node.unsupported("swiglu_limit_after_activation is not compiled")
    hidden = fixed(node, value.shape[-1], "the hidden size")
    inner = up.outputs // (2 if _fusion(node) else 1)
    found = [(x.experts, x.outputs, x.inputs) for x in (up, down, gate) if x is not None]
    wanted = [(hidden, inner), (inner, hidden)]
    if up.inputs != hidden or found[1:] != [(up.experts, *n) for n in wanted[: len(found) - 1]]:
        raise node.error(f"its layers do not fit a hidden size of {hidden}")
    tokens = f.context.symbols.product(list(value.shape[:-1]))
    x = f.cast(f.reshape(f.context.expr(value), [1, tokens, hidden]), "float32")
    gates = _gates(f, router, mixing, tokens, up.experts, normal)
    y = f.cast(down.apply(_activated(f, up, gate, x)), "float32")
    weighted = f(op.multiply, y, f.reshape(f(op.permute_dims, gates, [1, 0]),
                                           [up.experts, tokens, 1]))  # fmt: skip
    total = f.cast(f(op.sum, weighted, [0]), value.dtype)
    return op.reshape(total, value.shape)


def _gates(
    f: Formula, router: Value, mixing: Value | None, tokens: Expr, experts: int, normal: bool
) -> relax.Expr:
    """[tokens, experts]: the chosen experts' shares."""
    node, count = f.node, f.node.integer("k", 1)
    if not 1 <= count <= experts:
        raise node.error(f"k is {count}, there are {experts} experts")
    logits = f.cast(f.fit(router, (tokens, experts), "the router"), "float32")
    odds = f(op.nn.softmax, logits, -1)
    found = f.standards(
        selection.TABLE, "TopK", 11, [odds, f.context.scalar(count, "int64")], 2, axis=-1
    )
    shares, places = (value.var for value in found)
    along = f.reshape(f(op.arange, 0, experts, 1, dtype="int64"), [1, 1, experts])
    chosen = f(op.equal, f.reshape(places, [tokens, count, 1]), along)
    if mixing is not None:
        given = f.cast(f.fit(mixing, (tokens, experts), "router_weights"), "float32")
        given = f.reshape(given, [tokens, 1, experts])
        shares = f(op.sum, f(op.where, chosen, given, f.full(0.0, "float32")), [2])
    if normal:
        shares = f(op.divide, shares, f(op.sum, shares, [1], keepdims=True))
    spread = f.reshape(shares, [tokens, count, 1])
    return f(op.sum, f(op.where, chosen, spread, f.full(0.0, "float32")), [1])


def _fusion(node: Node) -> int:
    fusion = node.integer("swiglu_fusion", 0)
    if fusion not in (0, 1, 2):
        raise node.error(f"swiglu_fusion is {fusion}, it must be 0, 1 or 2")
    return fusion if node.text("activation_type", "relu") in ("swiglu", "geglu") else 0


def _activated(f: Formula, up: _Weights, gate: _Weights | None, x: relax.Expr) -> relax.Expr:
    """act(fc1 x), or act(fc1 x) * fc3 x, where both may be one layer."""
    node, fusion = f.node, _fusion(f.node)
    name = node.text("activation_type", "relu")
    h = f.cast(up.apply(x), "float32")
    other: relax.Expr | None = None
    if fusion:
        if gate is not None:
            raise node.error("fc3 is given beside a fused fc1")
        h, other = _halves(f, h, up.outputs // 2, fusion == 1)
    elif gate is not None:
        other = f.cast(gate.apply(x), "float32")
    elif name in ("swiglu", "geglu"):
        raise node.error(f"{name} needs fc3, or a fused fc1")
    if name == "swiglu":
        assert other is not None
        return _swiglu(f, h, other)
    rules: dict[str, Callable[[relax.Expr], relax.Expr]] = {
        "relu": op.nn.relu,
        "silu": op.nn.silu,
        "gelu": op.nn.gelu_tanh,
        "geglu": op.nn.gelu_tanh,
        "relu2": lambda x: op.square(f(op.nn.relu, x)),
    }
    if name != "identity":
        if name not in rules:
            raise node.unsupported(f"activation_type {name!r} is not compiled")
        h = f(rules[name], h)
    return h if other is None else f(op.multiply, h, other)


def _halves(
    f: Formula, x: relax.Expr, inner: int, interleaved: bool
) -> tuple[relax.Expr, relax.Expr]:
    experts, tokens, _ = dims(x)
    if not interleaved:
        return f.slice(x, 2, 0, inner), f.slice(x, 2, inner, 2 * inner)
    pairs = f.reshape(x, [experts, tokens, inner, 2])
    left, right = (f.reshape(f.slice(pairs, 3, n, n + 1), [experts, tokens, inner]) for n in (0, 1))
    return left, right


def _swiglu(f: Formula, g: relax.Expr, linear: relax.Expr) -> relax.Expr:
    """g * sigmoid(alpha * g) * (l + beta) of clamped g and l."""
    node = f.node
    alpha, beta = node.number("activation_alpha", 1.0), node.number("activation_beta", 0.0)
    if node.has("swiglu_limit"):
        limit = node.number("swiglu_limit")
        g = f(op.minimum, g, limit)
        linear = f(op.maximum, f(op.minimum, linear, limit), -limit)
    shut = f(op.sigmoid, f(op.multiply, g, alpha))
    return f(op.multiply, f(op.multiply, g, shut), f(op.add, linear, beta))


_ROUTING = (
    "activation_alpha activation_beta activation_type k normalize_routing_weights swiglu_fusion "
    "swiglu_limit swiglu_limit_after_activation use_sparse_mixer"
)

TABLE: Table = {
    (DOMAIN, "MoE", 1): entry(_moe, _ROUTING, inputs=8),
    (DOMAIN, "QMoE", 1): entry(
        _q_moe,
        f"{_ROUTING} accuracy_level block_size expert_weight_bits fc1_expert_weight_bits "
        "fc2_expert_weight_bits fc3_expert_weight_bits quant_type weights_prepacked",
        inputs=15,
    ),
}
