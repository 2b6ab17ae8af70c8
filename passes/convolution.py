"""Convolutions as a packed GEMM and a movement of data before or after it.

    conv2d            ----->  patches [b, oh*ow, c*kh*kw]  x  w [c*kh*kw, oc]        (im2col)
    conv2d_transpose  ----->  x [b, h*w, c]  x  w [c, kh*kw*oc], then the overlapping
                              contributions of each output element are added        (col2im)

One group, two spatial dimensions, NCHW; the others keep TVM's direct loops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx


@dataclass(frozen=True)
class Window:
    """Geometry of a sliding window: (height, width) each; padding is before (top, left)."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]


def window(call: relax.Call, kernel: tuple[int, int]) -> Window | None:
    """The geometry of a convolution call; None when it is not one of the forms above."""
    attrs = call.attrs
    if int(attrs.groups) != 1 or str(attrs.data_layout) != "NCHW" or call.ty.ndim != 4:
        return None
    top, left = (int(p) for p in attrs.padding[:2])
    return Window(
        kernel=kernel,
        stride=(int(attrs.strides[0]), int(attrs.strides[1])),
        padding=(top, left),
        dilation=(int(attrs.dilation[0]), int(attrs.dilation[1])),
    )


def forward_weight(weight: np.ndarray) -> np.ndarray:
    """OIHW -> [c * kh * kw, oc]"""
    return np.ascontiguousarray(weight.reshape(weight.shape[0], -1).T)


def transposed_weight(weight: np.ndarray) -> np.ndarray:
    """IOHW -> [c, kh * kw * oc]"""
    channels = weight.shape[0]
    return np.ascontiguousarray(weight.transpose(0, 2, 3, 1).reshape(channels, -1))


def patches(geometry: Window, height: Any, width: Any) -> Any:
    """The TE computation im2col: [b, c, h, w] -> [b, oh * ow, c * kh * kw], zeros outside."""
    kh, kw = geometry.kernel

    def im2col(x: te.Tensor) -> te.Tensor:
        batch, channels, rows, columns = x.shape

        def element(b: Any, place: Any, k: Any) -> Any:
            c, ky, kx = k // (kh * kw), k // kw % kh, k % kw
            y = place // width * geometry.stride[0] + ky * geometry.dilation[0]
            z = place % width * geometry.stride[1] + kx * geometry.dilation[1]
            y, z = y - geometry.padding[0], z - geometry.padding[1]
            if _covers(geometry, height, width, rows, columns):
                return x[b, c, y, z]
            inside = tirx.all(y >= 0, y < rows, z >= 0, z < columns)
            return tirx.if_then_else(inside, x[b, c, y, z], tirx.const(0, x.dtype))

        shape = (batch, height * width, channels * kh * kw)
        return te.compute(shape, element, name="im2col")

    return im2col


def overlaps(geometry: Window, rows: Any, columns: Any, height: Any, width: Any) -> Any:
    """The TE computation col2im: [b, h * w, kh * kw * oc] -> [b, oh, ow, oc].

    Output row oy gets kernel row ky of input row iy wherever iy * stride + ky * dilation equals
    oy + padding. Without dilation that leaves every stride-th ky, from (oy + padding) % stride on.
    """
    axes = zip(geometry.kernel, geometry.stride, geometry.padding, geometry.dilation, strict=True)
    down, across = (_Contributions(*axis) for axis in axes)

    def col2im(x: te.Tensor) -> te.Tensor:
        channels = x.shape[2] // (geometry.kernel[0] * geometry.kernel[1])
        jy = te.reduce_axis((0, down.terms), name="jy")
        jx = te.reduce_axis((0, across.terms), name="jx")

        def element(b: Any, oy: Any, ox: Any, c: Any) -> Any:
            ky, iy, valid_y = down.at(oy, jy, rows)
            kx, ix, valid_x = across.at(ox, jx, columns)
            value = x[b, iy * columns + ix, (ky * geometry.kernel[1] + kx) * channels + c]
            inside = tirx.all(valid_y, valid_x)
            zero = tirx.const(0, x.dtype)
            return te.sum(tirx.if_then_else(inside, value, zero), axis=[jy, jx])

        return te.compute((x.shape[0], height, width, channels), element, name="col2im")

    return col2im


@dataclass(frozen=True)
class _Contributions:
    """Along one axis: which kernel place of which input element reaches an output element."""

    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def terms(self) -> int:
        """How many candidates there are for one output element."""
        return self.kernel if self.dilation > 1 else -(-self.kernel // self.stride)

    def at(self, out: Any, term: Any, extent: Any) -> tuple[Any, Any, Any]:
        """Kernel place, input place, and whether both exist."""
        place = out + self.padding
        if self.dilation > 1:
            reached = place - term * self.dilation
            source = tirx.floordiv(reached, self.stride)
            exact = tirx.floormod(reached, self.stride) == 0
            return term, source, tirx.all(exact, source >= 0, source < extent)
        kernel = tirx.floormod(place, self.stride) + term * self.stride
        source = tirx.floordiv(place, self.stride) - term
        return kernel, source, tirx.all(kernel < self.kernel, source >= 0, source < extent)


def _covers(geometry: Window, height: Any, width: Any, rows: Any, columns: Any) -> bool:
    """Every window lies inside the image, so that no element needs a test."""
    if geometry.padding != (0, 0):
        return False
    sizes = zip((height, width), (rows, columns), (0, 1), strict=True)
    for count, size, axis in sizes:
        if not (isinstance(count, tirx.IntImm) and isinstance(size, tirx.IntImm)):
            return False
        reach = (int(count) - 1) * geometry.stride[axis]
        reach += (geometry.kernel[axis] - 1) * geometry.dilation[axis]
        if reach >= int(size):
            return False
    return True
