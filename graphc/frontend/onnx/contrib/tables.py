"""Every table of com.microsoft operators, in one list."""

from __future__ import annotations

from graphc.frontend.onnx.contrib import (
    activations,
    attention,
    bits,
    experts,
    group_query,
    matmul,
    movement,
    normalization,
    quantized,
    rotary,
)
from graphc.frontend.onnx.table import Table

TABLES: tuple[Table, ...] = (
    activations.TABLE,
    normalization.TABLE,
    matmul.TABLE,
    bits.TABLE,
    rotary.TABLE,
    attention.TABLE,
    group_query.TABLE,
    quantized.TABLE,
    movement.TABLE,
    experts.TABLE,
)
