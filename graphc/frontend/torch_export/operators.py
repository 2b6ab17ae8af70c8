"""Every table of ATen operators, in one list: torch decomposes those that are in none."""

from __future__ import annotations

from graphc.frontend.torch_export.call import Convert
from graphc.frontend.torch_export.ops import (
    attention,
    convolution,
    creation,
    elementwise,
    identity,
    indexing,
    matmul,
    movement,
    normalization,
    reduction,
)

_TABLES = (
    identity.TABLE,
    creation.TABLE,
    elementwise.TABLE,
    reduction.TABLE,
    matmul.TABLE,
    attention.TABLE,
    normalization.TABLE,
    convolution.TABLE,
    movement.TABLE,
    indexing.TABLE,
)
OPERATORS: dict[str, Convert] = {
    name: convert for table in _TABLES for name, convert in table.items()
}
assert len(OPERATORS) == sum(len(table) for table in _TABLES), "an operator is in two tables"
