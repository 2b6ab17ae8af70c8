"""Every table of com.microsoft operators, in one list."""

from __future__ import annotations

from graphc.frontend.onnx.contrib import activations, bits, matmul, normalization
from graphc.frontend.onnx.table import Table

TABLES: tuple[Table, ...] = (
    activations.TABLE,
    normalization.TABLE,
    matmul.TABLE,
    bits.TABLE,
)
