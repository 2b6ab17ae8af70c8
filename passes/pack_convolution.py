"""conv2d(x, w: param)            ----->  im2col, gemm, transpose
conv2d_transpose(x, w: param)  ----->  transpose, gemm, col2im           (convolution.py)
"""

from __future__ import annotations

import math

from tvm import relax

from graphc.passes import convolution
from graphc.passes.pack_matmul import product
from graphc.passes.packing import Matrix, Packing


def pack_convolution(packing: Packing, call: relax.Call) -> relax.Expr | None:
    """A convolution of float32 images with a float32 weight, either direction."""
    name, _ = packing.operator(call)
    rewrite = {
        "relax.nn.conv2d": _convolution,
        "relax.nn.conv2d_transpose": _transposed_convolution,
    }.get(name)
    if rewrite is None:
        return None
    x, weight = call.args
    if not packing.is_weight(weight, "float32") or str(x.ty.dtype) != "float32":
        return None
    return rewrite(packing, call)


def _convolution(packing: Packing, call: relax.Call) -> relax.Expr | None:
    x, weight = call.args
    channels, inner, *kernel = (int(n) for n in weight.ty.shape)
    geometry = convolution.window(call, (kernel[0], kernel[1]))
    if geometry is None:
        return None
    batch, _, height, width = call.ty.shape
    patches = packing.te(convolution.patches(geometry, height, width), x)
    matrix = Matrix(inner * math.prod(kernel), channels, convolution.forward_weight)
    image = packing.emit(product(packing, patches, weight, matrix))
    image = packing.emit(relax.op.permute_dims(image, [0, 2, 1]))
    return relax.op.reshape(image, [batch, channels, height, width])


def _transposed_convolution(packing: Packing, call: relax.Call) -> relax.Expr | None:
    x, weight = call.args
    inner, outer, *kernel = (int(n) for n in weight.ty.shape)
    geometry = convolution.window(call, (kernel[0], kernel[1]))
    if geometry is None:
        return None
    batch, channels, rows, columns = x.ty.shape
    _, _, height, width = call.ty.shape
    flat = packing.emit(relax.op.reshape(x, [batch, channels, rows * columns]))
    flat = packing.emit(relax.op.permute_dims(flat, [0, 2, 1]))
    matrix = Matrix(inner, outer * math.prod(kernel), convolution.transposed_weight)
    contributions = packing.emit(product(packing, flat, weight, matrix))
    overlapping = convolution.overlaps(geometry, rows, columns, height, width)
    return relax.op.permute_dims(packing.te(overlapping, contributions), [0, 3, 1, 2])
