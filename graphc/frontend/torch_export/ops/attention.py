"""scaled_dot_product_attention, written out so that the graph passes recognise one operator."""

from __future__ import annotations

import math

from tvm.relax import op

from graphc.frontend.onnx.symbols import same
from graphc.frontend.onnx.values import KnownValue, Value
from graphc.frontend.torch_export.call import Call, Result, Table
from graphc.ir import Expr


def _attention(call: Call) -> Result:
    """softmax(scale q k^T + mask) v over [..., heads, length, depth].

    A boolean mask says what may be seen; a row that may see nothing gives zeros, as in torch.
    """
    q, k, v = call.value("query"), call.value("key"), call.value("value")
    mask, causal = call.optional("attn_mask"), bool(call.get("is_causal", False))
    if call.get("dropout_p", 0.0):
        raise call.unsupported("dropout in training mode: call model.eval() before the export")
    depth = q.shape[-1]
    scale = call.arguments.get("scale")
    if scale is None:
        if not isinstance(depth, int):
            raise call.unsupported("its default scale depends on a dynamic depth")
        scale = 1 / math.sqrt(depth)
    if call.get("enable_gqa", False):
        k, v = (
            _repeated(call.part(name), x, q.shape[-3]) for name, x in (("keys", k), ("values", v))
        )
    order = [*range(k.rank - 2), k.rank - 1, k.rank - 2]
    turned = call.part("turned").transpose(k, order)
    scores = call.part("scores").apply("MatMul", [q, turned])
    factor = call.scalar(float(scale), q.dtype)
    scores = call.part("scaled").apply("Mul", [scores, factor])
    if causal:
        mask = _causal_mask(call.part("causal"), q.shape[-2], k.shape[-2])
    mask = None if mask is None else _spread(call.part("mask"), mask, k.shape[-2])
    if mask is not None and mask.dtype == "bool":
        never = call.scalar(float("-inf"), q.dtype)
        scores = call.part("masked").apply("Where", [mask, scores, never])
    elif mask is not None:
        scores = call.part("masked").apply("Add", [scores, call.cast(mask, q.dtype)])
    weights = call.part("weights").apply("Softmax", [scores], axis=-1)
    if mask is not None and not causal:  # a row may be masked throughout
        empty = call.part("empty").apply("IsNaN", [weights])
        zero = call.scalar(0.0, q.dtype)
        weights = call.part("guarded").apply("Where", [empty, zero, weights])
    return call.apply("MatMul", [weights, v])


def _spread(call: Call, mask: Value, keys: Expr) -> Value | None:
    """The mask with a column for each key; None if it lets everything be seen."""
    if (
        isinstance(mask, KnownValue)
        and mask.dtype == "bool"
        and not mask.symbolic
        and mask.data.all()
    ):
        return None
    if same(mask.shape[-1], keys) or not same(mask.shape[-1], 1):
        return mask
    return call.expand(mask, [*mask.shape[:-1], keys])


def _causal_mask(call: Call, rows: Expr, columns: Expr) -> Value:
    """Row i sees columns 0 to i."""
    row, column = (
        call.part(name).apply("Range", [call.scalar(n, "int64") for n in (0, extent, 1)])
        for name, extent in (("rows", rows), ("columns", columns))
    )
    upright = call.part("upright").reshape(row, [rows, 1])
    return call.apply("GreaterOrEqual", [upright, column])


def _repeated(call: Call, value: Value, heads: Expr) -> Value:
    """Each of the fewer heads for several query heads: [b, hk, t, d] -> [b, h, t, d]."""
    own = value.shape[-3]
    if same(own, heads):
        return value
    if not isinstance(own, int) or not isinstance(heads, int) or heads % own:
        raise call.error(f"{own} key heads do not divide {heads} query heads")
    lead, tail = value.shape[:-3], value.shape[-2:]
    narrow = call.part("narrow").reshape(value, [*lead, own, 1, *tail])
    shape = (*lead, own, heads // own, *tail)
    wide = call.part("wide").emit(op.broadcast_to(call.expr(narrow), shape), shape)
    return call.reshape(wide, [*lead, heads, *tail])


TABLE: Table = {"scaled_dot_product_attention.default": _attention}
