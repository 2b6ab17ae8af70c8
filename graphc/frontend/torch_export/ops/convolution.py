"""Convolution, pooling and resizing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from graphc.frontend.onnx.values import KnownValue
from graphc.frontend.torch_export.call import Call, Result, Table


def _spread(values: list[int], count: int) -> tuple[int, ...]:
    """One number for each spatial axis."""
    return tuple(values * count if len(values) == 1 else values)


def _convolution(call: Call) -> Result:
    value, weight, bias = call.value("input"), call.value("weight"), call.optional("bias")
    count = weight.rank - 2
    transposed = bool(call.get("transposed", False)) or "transpose" in call.operator
    attributes: dict[str, Any] = {
        "strides": _spread(call.all_fixed("stride") or [1], count),
        "dilations": _spread(call.all_fixed("dilation") or [1], count),
        "group": call.fixed("groups", 1),
    }
    padding = call.get("padding", [0])
    if isinstance(padding, str):
        if padding == "same":
            attributes["pads"] = _same_padding(call, attributes["dilations"], count)
    else:
        attributes["pads"] = _spread(call.all_fixed("padding"), count) * 2
    if transposed:
        attributes["output_padding"] = _spread(call.all_fixed("output_padding") or [0], count)
    single = value.rank == count + 1  # no batch
    if single:
        value = call.part("batch").reshape(value, [1, *value.shape])
    inputs = [value, weight, *([bias] if bias is not None else [])]
    made = call.apply("ConvTranspose" if transposed else "Conv", inputs, **attributes)
    return call.part("single").reshape(made, call.shape) if single else made


def _same_padding(call: Call, dilations: tuple[int, ...], count: int) -> tuple[int, ...]:
    """What keeps the size at stride 1; an odd rest goes behind, as in torch."""
    extents = call.value("weight").shape[-count:]
    totals = []
    for extent, dilation in zip(extents, dilations, strict=True):
        if not isinstance(extent, int):
            raise call.unsupported("a kernel of dynamic size is not compiled")
        totals.append(dilation * (extent - 1))
    return (*(total // 2 for total in totals), *(total - total // 2 for total in totals))


def _pool(operator: str, count: int) -> Callable[[Call], Result]:
    def convert(call: Call) -> Result:
        value = call.value("self")
        kernel = _spread(call.all_fixed("kernel_size"), count)
        attributes: dict[str, Any] = {
            "kernel_shape": kernel,
            "strides": _spread(call.all_fixed("stride") or list(kernel), count),
            "pads": _spread(call.all_fixed("padding") or [0], count) * 2,
            "ceil_mode": int(bool(call.get("ceil_mode", False))),
        }
        if operator == "MaxPool":
            attributes["dilations"] = _spread(call.all_fixed("dilation") or [1], count)
        else:
            attributes["count_include_pad"] = int(bool(call.get("count_include_pad", True)))
            if call.arguments.get("divisor_override") is not None:
                raise call.unsupported("a divisor of its own is not compiled")
        single = value.rank == count + 1
        if single:
            value = call.part("batch").reshape(value, [1, *value.shape])
        made = call.apply(operator, [value], **attributes)
        return call.part("single").reshape(made, call.shape) if single else made

    return convert


def _adaptive_average(call: Call) -> Result:
    value, sizes = call.value("self"), call.all_fixed("output_size")
    count = len(sizes)
    axes = list(range(value.rank - count, value.rank))
    if all(size == 1 for size in sizes):
        return call.apply("ReduceMean", [value, call.ints(axes)], keepdims=1)
    kernel = []
    for axis, size in zip(axes, sizes, strict=True):
        extent = value.shape[axis]
        if not isinstance(extent, int) or extent % size:
            raise call.unsupported(f"{extent} elements are not divided evenly into {size}")
        kernel.append(extent // size)
    return call.apply("AveragePool", [value], kernel_shape=tuple(kernel), strides=tuple(kernel))


def _resize(mode: str) -> Callable[[Call], Result]:
    def convert(call: Call) -> Result:
        name = "input" if "input" in call.arguments else "self"
        value = call.value(name)
        corners = bool(call.get("align_corners", False))
        attributes: dict[str, Any] = {"mode": mode, "cubic_coeff_a": -0.75}
        if mode == "nearest":
            attributes |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        else:
            attributes["coordinate_transformation_mode"] = (
                "align_corners" if corners else "half_pixel"
            )
        factors = call.arguments.get("scale_factors")
        if factors is None:
            sizes = call.ints(call.shape)
            return call.apply("Resize", [value, None, None, sizes], **attributes)

        scales = KnownValue(f"{call.name}.scales", "float32",
                            np.array([1.0, 1.0, *factors], "float32"))  # fmt: skip
        return call.apply("Resize", [value, None, scales], **attributes)

    return convert


_CONVOLUTIONS = (
    "convolution.default", "conv1d.default", "conv1d.padding", "conv2d.default", "conv2d.padding",
    "conv3d.default", "conv3d.padding", "conv_transpose1d.default", "conv_transpose2d.input",
    "conv_transpose3d.input",
)  # fmt: skip

TABLE: Table = {
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    "max_pool1d.default": _pool("MaxPool", 1),
    "max_pool2d.default": _pool("MaxPool", 2),
    "avg_pool1d.default": _pool("AveragePool", 1),
    "avg_pool2d.default": _pool("AveragePool", 2),
    "adaptive_avg_pool1d.default": _adaptive_average,
    "adaptive_avg_pool2d.default": _adaptive_average,
    "upsample_nearest2d.vec": _resize("nearest"),
    "upsample_bilinear2d.vec": _resize("linear"),
    "upsample_bicubic2d.vec": _resize("cubic"),
}
