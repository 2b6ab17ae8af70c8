"""Every table of operators, in one list: an operator that is not in it is not compiled."""

from __future__ import annotations

from graphc.frontend.onnx.ops import (
    basic,
    binary,
    cast,
    convolution,
    gather,
    generate,
    integer,
    matmul,
    movement,
    normalization,
    pad,
    pooling,
    quantize,
    recurrent,
    reduce,
    resize,
    shape,
    slice,
    softmax,
    unary,
)
from graphc.frontend.onnx.table import Registry

REGISTRY = Registry(
    (
        basic.TABLE,
        cast.TABLE,
        unary.TABLE,
        binary.TABLE,
        reduce.TABLE,
        matmul.TABLE,
        softmax.TABLE,
        normalization.TABLE,
        convolution.TABLE,
        recurrent.TABLE,
        integer.TABLE,
        quantize.TABLE,
        pooling.TABLE,
        shape.TABLE,
        movement.TABLE,
        slice.TABLE,
        gather.TABLE,
        pad.TABLE,
        resize.TABLE,
        generate.TABLE,
    )
)
