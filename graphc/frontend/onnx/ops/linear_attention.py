"""Recurrent attention of operator set 27: LinearAttention and CausalConvWithState."""

from __future__ import annotations

import math
from typing import Any

from tvm import te, tirx
from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.loops import cell, emit_loops, get, load, nest, number, put, store
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.ops.slice import sliced
from graphc.frontend.onnx.table import Operator, Result, Table
from graphc.frontend.onnx.values import Value
from graphc.frontend.onnx.writer import Writer

_RULES = ("linear", "gated", "delta", "gated_delta")


def _linear_attention(context: Context, node: Node) -> Result:
    """S = exp(g) S + k v^T, o = scale q S for each step, one state for each key head.

    The delta rules replace v by beta (v - S^T k). States are float32, as ONNX says.
    """
    query, key, value = node.input(0), node.input(1), node.input(2)
    past, decay, beta = node.optional(3), node.optional(4), node.optional(5)
    node.need_float(query)
    node.same_dtype(query, key, value)
    for item in (query, key, value):
        node.need_rank(item, 3, 3)
    rule = node.choice("update_rule", "gated_delta", _RULES)
    gated, corrected = rule.startswith("gated"), rule.endswith("delta")
    if gated != (decay is not None) or corrected != (beta is not None):
        raise node.error(f"update rule {rule!r} does not fit its inputs decay and beta")
    heads, groups = node.integer("q_num_heads"), node.integer("kv_num_heads")
    if heads < 1 or groups < 1 or heads % groups:
        raise node.error(f"{heads} query heads do not share {groups} key heads")
    batch, steps = query.shape[:2]
    symbols = context.symbols
    sizes = [symbols.exact_quotient(item.shape[2], count)
             for item, count in ((query, heads), (key, groups), (value, groups))]  # fmt: skip
    width, key_width, depth = sizes
    if not isinstance(width, int) or key_width != width or not isinstance(depth, int):
        raise node.error(f"query, key and value heads have {width}, {key_width}, {depth} elements")
    key = context.cast_shape(key, (batch, steps, groups * width), node.label)
    value = context.cast_shape(value, (batch, steps, groups * depth), node.label)
    scale = node.number("scale", 0.0) or 1 / math.sqrt(width)
    state_shape = (batch, groups, width, depth)
    args = [query, key, value]
    if past is not None:
        args.append(context.cast_shape(past, state_shape, node.label))
    if decay is not None:
        args.append(_gate(context, node, decay, groups, width))
    if beta is not None:
        args.append(_gate(context, node, beta, groups, 1))
    by_head = decay is not None and decay.shape[2] == groups
    shared_beta = beta is not None and beta.shape[2] == 1
    share, dtype = heads // groups, query.dtype
    state_dtype = past.dtype if past is not None else dtype

    def c(at: Any) -> Any:
        return tirx.Cast("float32", at)

    def body(inputs: list[Any], outputs: list[Any]) -> None:
        q, k, v, *rest = inputs
        start = rest.pop(0) if past is not None else None
        gate = rest.pop(0) if decay is not None else None
        rate = rest.pop(0) if beta is not None else None
        y, state, last = outputs
        zero = tirx.const(0, "float32")
        with nest([batch, groups]) as (b, g):
            with nest([width, depth]) as (i, j):
                held = zero if start is None else c(load(start, [b, g, i, j]))
                store(state, [b, g, i, j], held)
            with nest([steps]) as (t,), nest([depth]) as (j,):
                # Columns of the state do not depend on each other.
                at = g * depth + j
                if gate is not None:
                    with nest([width]) as (i,):
                        place = g if by_head else g * width + i
                        factor = tirx.exp(c(load(gate, [b, t, place])))
                        store(state, [b, g, i, j], load(state, [b, g, i, j]) * factor)
                new = cell("float32", c(load(v, [b, t, at])))
                if rate is not None:
                    found = cell("float32", zero)
                    with nest([width]) as (i,):
                        part = load(state, [b, g, i, j]) * c(load(k, [b, t, g * width + i]))
                        put(found, get(found) + part)
                    by = c(load(rate, [b, t, number(0) if shared_beta else g]))
                    put(new, by * (get(new) - get(found)))
                with nest([width]) as (i,):
                    part = c(load(k, [b, t, g * width + i])) * get(new)
                    store(state, [b, g, i, j], load(state, [b, g, i, j]) + part)
                with nest([share]) as (h,):
                    head = g * share + h
                    total = cell("float32", zero)
                    with nest([width]) as (i,):
                        part = c(load(q, [b, t, head * width + i])) * load(state, [b, g, i, j])
                        put(total, get(total) + part)
                    result = get(total) * tirx.const(scale, "float32")
                    store(y, [b, t, head * depth + j], tirx.Cast(dtype, result))
            with nest([width, depth]) as (i, j):
                final = tirx.Cast(state_dtype, load(state, [b, g, i, j]))
                store(last, [b, g, i, j], final)

    name = node.outputs[0]
    made = emit_loops(
        context,
        [name, f"{name}.state", f"{name}.last"],
        args,
        [(dtype, (batch, steps, heads * depth)), ("float32", state_shape),
         (state_dtype, state_shape)],
        body,
        "linear_attention",
    )  # fmt: skip
    return [made[0], made[2]][: len(node.outputs)]


def _gate(context: Context, node: Node, value: Value, groups: int, width: int) -> Value:
    """A decay or rate: one number for each head, or for each of its elements (or for all)."""
    node.need_rank(value, 3, 3)
    allowed = {groups, groups * width, 1 if width == 1 else groups}
    if value.shape[2] not in allowed:
        raise node.error(f"a gate of {value.shape[2]} numbers does not fit {groups} heads")
    return value


def _causal_conv(context: Context, node: Node) -> Result:
    """A depthwise convolution over the past state and the input, and the state after it."""
    value, weight = node.input(0), node.input(1)
    bias, past = node.optional(2), node.optional(3)
    node.need_float(value)
    node.same_dtype(value, weight)
    node.need_rank(value, 3, 3)
    node.need_rank(weight, 3, 3)
    activation = node.choice("activation", "none", ("none", "silu", "swish"))
    batch, channels, steps = value.shape
    size = weight.shape[2]
    if not isinstance(size, int) or size < 1:
        raise node.unsupported(f"a kernel of {size} taps is not compiled")
    context.symbols.unify(weight.shape[0], channels, f"{node.label} filters channels")
    w, dtype = Writer(context, node), value.dtype
    if past is None:
        zero, shape = w.full(0, dtype), (batch, channels, size - 1)
        past = context.broadcast_to(zero, shape, f"{node.outputs[0]}.past")
    past = context.cast_shape(past, (batch, channels, size - 1), node.label)
    padded = w.concat([past, value], 2) if size > 1 else value
    args = [padded, weight]
    if bias is not None:
        args.append(context.cast_shape(bias, (channels,), node.label))

    def convolve(x: te.Tensor, taps: te.Tensor, *rest: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, size), "k")
        total = te.compute(
            (batch, channels, steps),
            lambda b, c, t: te.sum(
                tirx.Cast("float32", x(b, c, t + k)) * tirx.Cast("float32", taps(c, 0, k)), axis=k
            ),
            name="causal_conv",
        )

        def finish(b: Any, c: Any, t: Any) -> Any:
            result = total(b, c, t)
            if rest:
                result = result + tirx.Cast("float32", rest[0](c))
            return tirx.Cast(dtype, result)

        return te.compute((batch, channels, steps), finish, name="with_bias")

    made: Value = context.emit_te(
        f"{node.outputs[0]}.conv", convolve, args, (batch, channels, steps), "causal_conv"
    )
    if activation != "none":
        made = w.cast(w(op.nn.silu, w.cast(made, "float32")), dtype)
    state = sliced(context, padded, {2: (steps, size - 1, 1)}, f"{node.outputs[0]}.state")
    return [made, state][: len(node.outputs)]


TABLE: Table = {
    ("", "LinearAttention", 27): Operator(_linear_attention),
    ("", "CausalConvWithState", 27): Operator(_causal_conv),
}
