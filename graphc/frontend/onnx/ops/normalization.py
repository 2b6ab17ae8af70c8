"""Layer, RMS, batch, instance and Lp normalisation."""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.symbols import same
from graphc.frontend.onnx.table import Operator, Result, Table
from graphc.frontend.onnx.values import KnownValue, TensorValue, Value, numpy_dtype


def _layer_norm(context: Context, node: Node) -> Result:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the axes from `axis` on.

    Half-precision inputs are normalised in float32, as stash_type says.
    """
    value, scale, bias = node.input(0), node.input(1), node.optional(2)
    node.need_float(value)
    node.same_dtype(value, scale, *([bias] if bias else []))
    axis = node.axis(node.integer("axis", -1), value.rank)
    axes = list(range(axis, value.rank))
    epsilon = node.number("epsilon", 1e-5)
    wide = _stash(context, node, value)
    mean: TensorValue | None = None
    inverse: TensorValue | None = None
    if any(node.outputs[1:]):
        mean, inverse = _statistics(context, node, wide, axes, epsilon)
    shape = value.shape[axis:]
    gamma = _parameter(context, node, scale, shape, wide.dtype)
    beta = _parameter(context, node, bias or _zeros(scale), shape, wide.dtype)
    if wide.dtype == "float64":  # TVM's operator is for float32
        call = _in_double(context, node, wide, (gamma, beta), axes, epsilon)
    else:
        call = op.nn.layer_norm(context.expr(wide), gamma, beta, axes, epsilon)
    result = _narrow(context, node, call, value.dtype)
    return [result, mean, inverse][: max(len(node.outputs), 1)]


def _in_double(
    context: Context,
    node: Node,
    value: Value,
    parameters: tuple[relax.Expr, relax.Expr],
    axes: list[int],
    epsilon: float,
) -> relax.Expr:
    """The formula, operator by operator."""
    name = f"{node.outputs[0]}.double"
    x = context.expr(value)
    mean = context.emit(op.mean(x, axes, keepdims=True), f"{name}.mean").var
    centred = context.emit(op.subtract(x, mean), f"{name}.centred").var
    square = context.emit(op.square(centred), f"{name}.square").var
    variance = context.emit(op.mean(square, axes, keepdims=True), f"{name}.variance").var
    moved = op.add(variance, context.constant(epsilon, value.dtype))
    deviation = context.emit(op.sqrt(context.emit(moved, f"{name}.moved").var), f"{name}.std").var
    normal = context.emit(op.divide(centred, deviation), f"{name}.normal").var
    scaled = context.emit(op.multiply(normal, parameters[0]), f"{name}.scaled").var
    return op.add(scaled, parameters[1])


def _stash(context: Context, node: Node, value: Value) -> Value:
    if value.dtype not in ("float16", "bfloat16"):
        return value
    return context.emit(op.astype(context.expr(value), "float32"), f"{node.outputs[0]}.wide")


def _narrow(context: Context, node: Node, call: relax.Expr, dtype: str) -> relax.Expr:
    if dtype not in ("float16", "bfloat16"):
        return call
    return op.astype(context.emit(call, f"{node.outputs[0]}.normal").var, dtype)


def _zeros(like: Value) -> Value:
    if any(not isinstance(extent, int) for extent in like.shape):
        return KnownValue("", like.dtype, np.zeros((), numpy_dtype(like.dtype)))
    fixed = [extent for extent in like.shape if isinstance(extent, int)]
    return KnownValue(f"{like.name}.zeros", like.dtype, np.zeros(fixed, numpy_dtype(like.dtype)))


def _parameter(
    context: Context, node: Node, value: Value, shape: tuple[object, ...], dtype: str
) -> relax.Expr:
    """Scale or bias in the shape of the normalised axes."""
    if isinstance(value, KnownValue) and value.dtype != dtype and not value.symbolic:
        value = KnownValue(value.name, dtype, value.data.astype(numpy_dtype(dtype)))
    elif value.dtype != dtype:
        value = context.emit(op.astype(context.expr(value), dtype), f"{value.name}.wide")
    full = context.broadcast_shape(node, value.shape, shape)
    if len(full) != len(shape) or not all(same(a, b) for a, b in zip(full, shape, strict=True)):
        raise node.error(f"scale or bias {list(value.shape)} does not fit {list(shape)}")
    return context.expr(context.broadcast_to(value, shape, f"{value.name}.full", node))


def _statistics(
    context: Context, node: Node, value: Value, axes: list[int], epsilon: float
) -> tuple[TensorValue, TensorValue]:
    """The second and third results: mean and 1 / sqrt(variance + epsilon), kept dimensions."""
    names = [*node.outputs, "", ""]
    x = context.expr(value)
    mean = context.emit(op.mean(x, axes, keepdims=True), names[1] or f"{names[0]}.mean")
    centred = context.emit(op.subtract(x, mean.var), f"{names[0]}.centred").var
    square = context.emit(op.square(centred), f"{names[0]}.square").var
    variance = context.emit(op.mean(square, axes, keepdims=True), f"{names[0]}.variance").var
    shifted = context.emit(
        op.add(variance, context.constant(epsilon, value.dtype)), f"{names[0]}.shifted"
    ).var
    inverse = context.emit(op.rsqrt(shifted), names[2] or f"{names[0]}.inverse")
    return mean, inverse


def _rms_norm(context: Context, node: Node) -> Result:
    """x / sqrt(mean(x^2) + epsilon) * scale over the axes from `axis` on."""
    value, scale = node.input(0), node.input(1)
    node.need_float(value)
    node.same_dtype(value, scale)
    axis = node.axis(node.integer("axis", -1), value.rank)
    epsilon, name = node.number("epsilon", 1e-5), node.outputs[0]
    wide = _stash(context, node, value)
    gamma = _parameter(context, node, scale, value.shape[axis:], wide.dtype)
    axes = list(range(axis, value.rank))
    if axis:
        return _narrow(
            context, node, op.nn.rms_norm(context.expr(wide), gamma, axes, epsilon), value.dtype
        )
    # TVM's kernel needs an axis that is not normalised.
    batch = context.reshape(wide, [1, *value.shape], f"{name}.batch")
    axes = list(range(1, value.rank + 1))
    normal = context.emit(op.nn.rms_norm(context.expr(batch), gamma, axes, epsilon), f"{name}.rms")
    return _narrow(context, node, op.reshape(normal.var, value.shape), value.dtype)


def _batch_norm(context: Context, node: Node) -> Result:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, as one multiplication and addition."""
    value = node.input(0)
    node.need_float(value)
    node.need_rank(value, 2)
    if node.integer("training_mode", 0) or any(node.outputs[1:]):
        raise node.unsupported("batch normalisation in training mode: export for inference")
    if node.version < 9 and node.integer("spatial", 1) != 1:
        raise node.unsupported("batch normalisation that is not spatial is not compiled")
    parts = [node.input(index) for index in range(1, 5)]
    for part in parts:
        node.need_rank(part, 1, 1)
        context.symbols.unify(part.shape[0], value.shape[1], f"{node.label} scales channels")
    epsilon = node.number("epsilon", 1e-5)
    factor, offset = _affine(context, node, parts, epsilon, value.dtype)
    shape = [1, value.shape[1], *([1] * (value.rank - 2))]
    name = node.outputs[0]
    by = context.emit(op.reshape(context.expr(factor), tuple(shape)), f"{name}.factor", shape)
    to = context.emit(op.reshape(context.expr(offset), tuple(shape)), f"{name}.offset", shape)
    scaled = context.emit(op.multiply(context.expr(value), by.var), f"{name}.scaled")
    return op.add(scaled.var, to.var)


def _affine(
    context: Context, node: Node, parts: list[Value], epsilon: float, dtype: str
) -> tuple[Value, Value]:
    """factor = scale / sqrt(variance + epsilon), offset = bias - mean * factor."""
    known = [p.data.astype("float64") for p in parts if isinstance(p, KnownValue)]
    name = node.outputs[0]
    if len(known) == 4:
        scale, bias, mean, variance = known
        factor = scale / np.sqrt(variance + epsilon)
        offset = bias - mean * factor
        kind = numpy_dtype(dtype)
        return (
            KnownValue(f"{name}.factor", dtype, factor.astype(kind)),
            KnownValue(f"{name}.offset", dtype, offset.astype(kind)),
        )
    exprs = []
    for part in parts:
        expr = context.expr(part)
        if part.dtype != dtype:
            expr = context.emit(op.astype(expr, dtype), f"{part.name}.cast").var
        exprs.append(expr)
    gamma, beta, centre, spread = exprs
    shifted = context.emit(op.add(spread, context.constant(epsilon, dtype)), f"{name}.shifted").var
    root = context.emit(op.sqrt(shifted), f"{name}.root").var
    by = context.emit(op.divide(gamma, root), f"{name}.by")
    moved = context.emit(op.multiply(centre, by.var), f"{name}.moved").var
    return by, context.emit(op.subtract(beta, moved), f"{name}.to")


def _instance_norm(context: Context, node: Node) -> Result:
    """Over the spatial axes of each channel of each sample."""
    value, scale, bias = node.input(0), node.input(1), node.input(2)
    node.need_float(value)
    node.same_dtype(value, scale, bias)
    node.need_rank(value, 3)
    name = node.outputs[0]
    axes = list(range(2, value.rank))
    wide = _stash(context, node, value)
    mean, inverse = _statistics(context, node, wide, axes, node.number("epsilon", 1e-5))
    shape = (value.shape[1], *([1] * (value.rank - 2)))
    centred = context.emit(op.subtract(context.expr(wide), mean.var), f"{name}.moved").var
    normal = context.emit(op.multiply(centred, inverse.var), f"{name}.normal").var
    exprs = []
    for part in (scale, bias):
        node.need_rank(part, 1, 1)
        context.symbols.unify(part.shape[0], value.shape[1], f"{node.label} scales channels")
        flat = context.tensor(part)
        if part.dtype != wide.dtype:
            flat = context.emit(op.astype(flat.var, wide.dtype), f"{part.name}.wide")
        exprs.append(context.emit(op.reshape(flat.var, shape), f"{part.name}.shaped", shape).var)
    scaled = context.emit(op.multiply(normal, exprs[0]), f"{name}.scaled").var
    if value.dtype == wide.dtype:
        return op.add(scaled, exprs[1])
    return op.astype(context.emit(op.add(scaled, exprs[1]), f"{name}.sum").var, value.dtype)


def _lp_norm(context: Context, node: Node) -> Result:
    """x / |x|_p along an axis; 0 where the norm is 0."""
    value = node.input(0)
    node.need_float(value)
    axis, p = node.axis(node.integer("axis", -1), value.rank), node.integer("p", 2)
    if p not in (1, 2):
        raise node.error(f"p is {p}, it must be 1 or 2")
    name, x = node.outputs[0], context.expr(value)
    terms = context.emit(op.abs(x) if p == 1 else op.square(x), f"{name}.terms").var
    norm = context.emit(op.sum(terms, [axis], keepdims=True), f"{name}.sum").var
    if p == 2:
        norm = context.emit(op.sqrt(norm), f"{name}.norm").var
    zero, one = context.constant(0, value.dtype), context.constant(1, value.dtype)
    empty = context.emit(op.equal(norm, zero), f"{name}.empty").var
    return op.divide(x, context.emit(op.where(empty, one, norm), f"{name}.safe").var)


TABLE: Table = {
    ("", "LayerNormalization", 17): Operator(_layer_norm),
    ("", "RMSNormalization", 23): Operator(_rms_norm),
    ("", "BatchNormalization", 7): Operator(_batch_norm),
    ("", "InstanceNormalization", 6): Operator(_instance_norm),
    ("", "LpNormalization", 1): Operator(_lp_norm),
}
