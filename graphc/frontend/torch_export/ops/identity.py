"""What is the identity in inference, and conversions of type."""

from __future__ import annotations

from graphc.frontend.torch_export.call import Call, Result, Table


def _same(call: Call) -> Result:
    return call.value("self")


def _dropout(call: Call) -> Result:
    if call.get("train", False) and call.get("p", 0.0):
        raise call.unsupported("dropout in training mode: call model.eval() before the export")
    return call.value("input")


def _typed(call: Call) -> Result:
    return call.cast(call.value("self"), call.dtype)


def _dropped(call: Call) -> Result:
    """A check that torch made while exporting, of what cannot vary here."""
    return None


_SAME = (
    "alias.default", "detach.default", "clone.default", "contiguous.default", "lift.default",
    "lift_fresh.default", "lift_fresh_copy.default", "detach_copy.default", "resolve_conj.default",
    "resolve_neg.default", "positive.default",
)  # fmt: skip
_TYPED = (
    "to.dtype", "to.device", "to.dtype_layout", "to.other", "to.prim_Device", "to.prim_dtype",
    "_to_copy.default", "type_as.default", "float.default", "_cast_Float.default",
)  # fmt: skip

TABLE: Table = {
    **dict.fromkeys(_SAME, _same),
    **dict.fromkeys(_TYPED, _typed),
    "dropout.default": _dropout,
    "feature_dropout.default": _dropout,
    "_assert_tensor_metadata.default": _dropped,
}
