"""Layer, RMS, group and batch normalisation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphc.frontend.onnx.values import KnownValue, Value, numpy_dtype
from graphc.frontend.torch_export.call import Call, Result, Table


def _ones(call: Call, shape: Sequence[int], dtype: str, number: float = 1) -> KnownValue:
    return KnownValue(f"{call.name}.ones", dtype, np.full(shape, number, numpy_dtype(dtype)))


def _layer_norm(call: Call) -> Result:
    value, shape = call.value("input"), call.all_fixed("normalized_shape")
    scale = call.optional("weight") or _ones(call, shape, value.dtype)
    bias = call.optional("bias")
    epsilon = float(call.get("eps", 1e-5))
    inputs = [value, scale, *([bias] if bias is not None else [])]
    return call.apply("LayerNormalization", inputs, axis=-len(shape), epsilon=epsilon)


def _rms_norm(call: Call) -> Result:
    """torch's default epsilon is the type's own."""
    value, shape = call.value("input"), call.all_fixed("normalized_shape")
    scale = call.optional("weight") or _ones(call, shape, value.dtype)
    epsilon = call.arguments.get("eps")
    if epsilon is None:
        epsilon = float(np.finfo(numpy_dtype(value.dtype)).eps)
    return call.apply("RMSNormalization", [value, scale], axis=-len(shape), epsilon=float(epsilon))


def _batch_norm(call: Call) -> Result:
    if call.get("training", False):
        raise call.unsupported("batch normalisation in training mode: call model.eval() first")
    value = call.value("input")
    channels = value.shape[1]
    if not isinstance(channels, int):
        raise call.unsupported("a dynamic number of channels is not compiled")
    parts: list[Value] = [
        call.optional(name) or _ones(call, [channels], value.dtype, default)
        for name, default in (("weight", 1), ("bias", 0), ("running_mean", 0), ("running_var", 1))
    ]
    made = call.apply("BatchNormalization", [value, *parts], epsilon=float(call.get("eps", 1e-5)))
    return [made, None, None] if "_no_training" in call.operator else made


def _group_norm(call: Call) -> Result:
    """Each group of channels of a sample by itself: one row of a layer norm without scale."""
    value, groups = call.value("input"), call.fixed("num_groups")
    channels = value.shape[1]
    if not isinstance(channels, int) or channels % groups:
        raise call.error(f"{groups} groups do not divide {channels} channels")
    batch, *inner = (value.shape[0], *value.shape[2:])
    rows = call.part("rows").reshape(
        value, [batch, groups, call.context.symbols.product([channels // groups, *inner])]
    )
    axis = call.ints([2])
    mean = call.part("mean").apply("ReduceMean", [rows, axis], keepdims=1)
    centred = call.part("centred").apply("Sub", [rows, mean])
    square = call.part("square").apply("Mul", [centred, centred])
    variance = call.part("variance").apply("ReduceMean", [square, axis], keepdims=1)
    shifted = call.part("shifted").apply(
        "Add", [variance, call.scalar(float(call.get("eps", 1e-5)), value.dtype)]
    )
    root = call.part("root").apply("Sqrt", [shifted])
    normal = call.part("flat").apply("Div", [centred, root])
    result = call.part("normal").reshape(normal, value.shape)
    along = [channels, *[1] * len(inner)]
    for name, operator in (("weight", "Mul"), ("bias", "Add")):
        factor = call.optional(name)
        if factor is not None:
            result = call.part(f"with_{name}").apply(
                operator, [result, call.part(name).reshape(factor, along)]
            )
    return result


TABLE: Table = {
    "layer_norm.default": _layer_norm,
    "rms_norm.default": _rms_norm,
    "batch_norm.default": _batch_norm,
    "_native_batch_norm_legit_no_training.default": _batch_norm,
    "group_norm.default": _group_norm,
}
