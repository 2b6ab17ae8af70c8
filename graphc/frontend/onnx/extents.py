"""Helpers for dimensions: the variables in them, dimensions as values, shapes that Relax knows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm_ffi
from tvm import relax, tirx

from graphc.frontend.onnx.symbols import same
from graphc.frontend.onnx.values import KnownValue
from graphc.ir import Expr


def variables(exprs: Sequence[Expr]) -> list[tirx.Var]:
    """The dimensions in some expressions, in order of appearance."""
    found: dict[tirx.Var, None] = {}
    for expr in exprs:
        if isinstance(expr, tirx.Expr):
            tvm_ffi.structural_walk(expr, (tirx.Var, found.setdefault), order="post")
    return list(found)


def scalar(extent: Expr, dtype: str = "int64") -> KnownValue:
    """A dimension as a 0-d value."""
    if isinstance(extent, int):
        return KnownValue("", dtype, np.array(extent, dtype))
    data = np.empty((), object)
    data[()] = extent
    return KnownValue(str(extent), dtype, data)


def shape_of(var: relax.Var) -> list[Expr] | None:
    """The shape that Relax inferred, numbers as Python ints."""
    if not isinstance(var.ty, relax.TensorType) or var.ty.shape is None:
        return None
    values = getattr(var.ty.shape, "values", None)
    if values is None:
        return None
    return [int(v.value) if isinstance(v, tirx.IntImm) else v for v in values]


def identical(found: Sequence[Expr], shape: Sequence[Expr]) -> bool:
    return len(found) == len(shape) and all(same(a, b) for a, b in zip(found, shape, strict=True))


def known(extents: Sequence[Expr], name: str) -> KnownValue:
    """Dimensions as an int64 vector."""
    if all(isinstance(extent, int) for extent in extents):
        return KnownValue(name, "int64", np.array(extents, "int64"))
    data = np.empty(len(extents), object)
    data[:] = extents
    return KnownValue(name, "int64", data)
