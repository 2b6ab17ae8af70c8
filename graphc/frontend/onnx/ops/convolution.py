"""Conv and ConvTranspose in one, two and three dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx
from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.ops.windows import Window, positions, spatial, window
from graphc.frontend.onnx.table import Operator, Result, Table
from graphc.frontend.onnx.values import TensorValue, Value
from graphc.ir import Expr

_CONV = {1: op.nn.conv1d, 2: op.nn.conv2d, 3: op.nn.conv3d}
_TRANSPOSE = {1: op.nn.conv1d_transpose, 2: op.nn.conv2d_transpose, 3: op.nn.conv3d_transpose}


def _operands(node: Node) -> tuple[Value, Value, Value | None, int]:
    value, weight, bias = node.input(0), node.input(1), node.optional(2)
    node.need_float(value)
    node.same_dtype(value, weight, *([bias] if bias else []))
    node.need_rank(value, 3, 5)
    node.need_rank(weight, value.rank, value.rank)
    return value, weight, bias, value.rank - 2


def _kernel(node: Node, weight: Value) -> tuple[int, ...]:
    kernel = weight.shape[2:]
    fixed = tuple(extent for extent in kernel if isinstance(extent, int))
    if len(fixed) != len(kernel):
        raise node.unsupported("a kernel whose size depends on the inputs is not compiled")
    given = node.integers("kernel_shape", fixed)
    if given != fixed:
        raise node.error(f"kernel_shape {list(given)} is not the weight's {list(fixed)}")
    return fixed


def _channels(context: Context, node: Node, extent: Expr, groups: int) -> int:
    channels = context.symbols.simplify(extent)
    if not isinstance(channels, int):
        raise node.unsupported(f"a number of channels {channels} that is not fixed")
    if not 1 <= groups <= channels or channels % groups:
        raise node.error(f"{channels} channels cannot be split into {groups} groups")
    return channels


def _conv(context: Context, node: Node) -> Result:
    value, weight, bias, count = _operands(node)
    groups = node.integer("group", 1)
    outputs = _channels(context, node, weight.shape[0], groups)
    each = _channels(context, node, weight.shape[1], 1)
    context.symbols.unify(value.shape[1], each * groups, f"{node.label} convolves channels")
    value = context.cast_shape(value, [value.shape[0], each * groups, *value.shape[2:]], node.label)
    given = window(context, node, _kernel(node, weight), value.shape[2:])
    shape = [value.shape[0], outputs, *positions(context, node, given, value.shape[2:])]
    name = node.outputs[0]
    call = _CONV[count](
        context.expr(value),
        context.expr(weight),
        strides=list(given.strides),
        padding=given.padding,
        dilation=list(given.dilations),
        groups=groups,
    )
    result = context.emit(call, f"{name}.conv" if bias else name, shape, node.label)
    return _biased(context, node, result, bias)


def _biased(context: Context, node: Node, result: TensorValue, bias: Value | None) -> Result:
    if bias is None:
        return result
    node.need_rank(bias, 1, 1)
    channels = result.shape[1]
    context.symbols.unify(bias.shape[0], channels, f"{node.label} adds a bias")
    shape = [1, channels, *([1] * (result.rank - 2))]
    name = node.outputs[0]
    spread = context.emit(op.reshape(context.expr(bias), tuple(shape)), f"{name}.bias", shape)
    return context.emit(op.add(result.var, spread.var), name, result.shape)


def _conv_transpose(context: Context, node: Node) -> Result:
    value, weight, bias, _ = _operands(node)
    groups = node.integer("group", 1)
    inputs = _channels(context, node, weight.shape[0], groups)
    each = _channels(context, node, weight.shape[1], 1)
    context.symbols.unify(value.shape[1], inputs, f"{node.label} convolves channels")
    value = context.cast_shape(value, [value.shape[0], inputs, *value.shape[2:]], node.label)
    kernel = _kernel(node, weight)
    given, extra = _transpose_window(node, kernel, value.shape[2:])
    extents: list[Expr] = []
    for axis, extent in enumerate(value.shape[2:]):
        out = context.symbols.simplify(
            (extent - 1) * given.strides[axis] + given.reach(axis) + extra[axis]
            - given.before[axis] - given.after[axis]
        )  # fmt: skip
        if isinstance(out, int) and out < 1:
            raise node.error(f"its padding leaves nothing of axis {axis + 2}")
        extents.append(out)
    shape = [value.shape[0], each * groups, *extents]
    return _emit_transpose(context, node, value, weight, bias, given, extra, shape, groups)


def _emit_transpose(
    context: Context,
    node: Node,
    value: Value,
    weight: Value,
    bias: Value | None,
    given: Window,
    extra: tuple[int, ...],
    shape: list[Expr],
    groups: int,
) -> Result:
    """Relax's operator where it is sure to be lowered, else a sum for each element."""
    name = node.outputs[0]
    count = value.rank - 2
    target = f"{name}.conv" if bias else name
    padded = tuple(max(e - s + 1, 0) for e, s in zip(extra, given.strides, strict=True))
    if count < 3 and groups == 1 and not any(d > 1 for d in given.dilations) and not any(padded):
        call = _TRANSPOSE[count](
            context.expr(value),
            context.expr(weight),
            strides=list(given.strides),
            padding=given.padding,
            output_padding=list(extra),
            dilation=list(given.dilations),
            groups=groups,
        )
        return _biased(context, node, context.emit(call, target, shape, node.label), bias)
    compute = _gathered(given, groups, shape)
    made = context.emit_te(target, compute, [value, weight], shape, "conv_transpose")
    return _biased(context, node, made, bias)


def _gathered(
    given: Window, groups: int, shape: Sequence[Expr]
) -> Callable[[te.Tensor, te.Tensor], te.Tensor]:
    """y[n, m, o] = sum over c, k of x[n, c, (o + before - k d) / s] w[c, m, k], where that is a
    position of x; c and m are of the same group."""

    def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        each, inputs = w.shape[1], w.shape[0]
        depth = tirx.floordiv(inputs, groups)
        channel = te.reduce_axis((0, depth), name="channel")
        taps = [te.reduce_axis((0, k), name=f"k{axis}") for axis, k in enumerate(given.kernel)]

        def element(n: Any, m: Any, *at: Any) -> Any:
            source = tirx.floordiv(m, each) * depth + channel
            places, valid = [], []
            for axis, (o, tap) in enumerate(zip(at, taps, strict=True)):
                reach = o + given.before[axis] - tap * given.dilations[axis]
                place = tirx.floordiv(reach, given.strides[axis])
                places.append(place)
                valid += [
                    tirx.floormod(reach, given.strides[axis]) == 0,
                    place >= 0,
                    place < x.shape[axis + 2],
                ]
            read = tirx.if_then_else(
                tirx.all(*valid), x(n, source, *places), tirx.const(0, x.dtype)
            )
            return te.sum(read * w(source, tirx.floormod(m, each), *taps), axis=[channel, *taps])

        return te.compute(tuple(shape), element, name="conv_transpose")

    return compute


def _transpose_window(
    node: Node, kernel: tuple[int, ...], extents: tuple[Expr, ...]
) -> tuple[Window, tuple[int, ...]]:
    """The window and the output padding; `output_shape` sets the padding instead of `pads`."""
    count = len(kernel)
    strides = spatial(node, "strides", count, 1)
    dilations = spatial(node, "dilations", count, 1)
    extra = spatial(node, "output_padding", count, 0, 0)
    mode = node.choice("auto_pad", "NOTSET", ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"))
    if not node.has("output_shape") and mode in ("NOTSET", "VALID"):
        pads = (0,) * (2 * count) if mode == "VALID" else spatial(node, "pads", 2 * count, 0, 0)
        return Window(kernel, strides, dilations, pads[:count], pads[count:]), extra
    wanted: tuple[int, ...] | None = None
    if node.has("output_shape"):
        wanted = spatial(node, "output_shape", count, 1)
    before, after = [], []
    for axis, extent in enumerate(extents):
        if wanted is None:
            reach = dilations[axis] * (kernel[axis] - 1) + 1
            total = max(reach + extra[axis] - strides[axis], 0)
        elif isinstance(extent, int):
            reach = dilations[axis] * (kernel[axis] - 1) + 1
            full = strides[axis] * (extent - 1) + extra[axis] + reach
            total = full - wanted[axis]
            if total < 0:  # more than there is: zeros behind
                extra = (*extra[:axis], extra[axis] - total, *extra[axis + 1 :])
                total = 0
        else:
            raise node.unsupported("output_shape of a dimension that is not fixed")
        small, large = total // 2, total - total // 2
        first = small if mode == "SAME_UPPER" else large
        before.append(first)
        after.append(total - first)
    return Window(kernel, strides, dilations, tuple(before), tuple(after)), extra


TABLE: Table = {
    ("", "Conv", 1): Operator(_conv),
    ("", "ConvTranspose", 1): Operator(_conv_transpose),
}
