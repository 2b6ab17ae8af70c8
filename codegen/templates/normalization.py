"""Layer and RMS norm over the last dimension, one row at a time while it is in the first cache.

    layer norm   y = (x - mean) / sqrt(var + eps) * gamma + beta      (Ba et al. 2016)
    RMS norm     y = x / sqrt(mean(x^2) + eps) * gamma                (Zhang and Sennrich 2019)

The variance is taken from the deviations, in a second pass: sum(x^2) - mean^2 cancels.
Bytes: one read and one write of x; the passes after the first hit L1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from graphc.codegen import builder as tir
from graphc.targets.target import Target

VERSION = 2

# Sums that run side by side: an addition takes as many cycles before the next may build on it.
_CHAINS = 4


def build_layer_norm(
    arguments: Sequence[Any], attrs: Any, result: Any, target: Target
) -> tirx.PrimFunc | None:
    """relax.nn.layer_norm(x, gamma, beta) over the last axis in float32 or float64."""
    axes = [int(a) for a in attrs.axes]
    if not is_row_norm(arguments[:3], axes) or not (bool(attrs.center) and bool(attrs.scale)):
        return None
    names = ["x", "gamma", "beta", "y"]
    x, gamma, beta, y = tir.fresh_buffers([*arguments_types(arguments[:3]), result], names)
    return _rows(
        f"layer_norm/{VERSION}",
        (x, gamma, beta, y),
        float(attrs.epsilon),
        target.lanes(32),
        centred=True,
        affine=lambda value, at: value * tir.load(gamma, [at]) + tir.load(beta, [at]),
    )


def build_rms_norm(
    arguments: Sequence[Any], attrs: Any, result: Any, target: Target
) -> tirx.PrimFunc | None:
    """relax.nn.rms_norm(x, gamma) over the last axis in float32 or float64."""
    if not is_row_norm(arguments[:2], [int(a) for a in attrs.axes]):
        return None
    x, gamma, y = tir.fresh_buffers([*arguments_types(arguments[:2]), result], ["x", "gamma", "y"])
    return _rows(
        f"rms_norm/{VERSION}",
        (x, gamma, y),
        float(attrs.epsilon),
        target.lanes(32),
        centred=False,
        affine=lambda value, at: value * tir.load(gamma, [at]),
    )


def arguments_types(arguments: Sequence[Any]) -> list[Any]:
    """The tensor types of call arguments."""
    return [a.ty for a in arguments]


def is_row_norm(arguments: Sequence[Any], axes: list[int]) -> bool:
    rank = arguments[0].ty.ndim
    if axes not in ([-1], [rank - 1]):
        return False
    last = arguments[0].ty.shape[rank - 1]
    dtypes = {str(a.ty.dtype) for a in arguments}
    return dtypes in ({"float32"}, {"float64"}) and all(
        a.ty.ndim == 1 and tir.static(a.ty.shape[0] - last) == 0 for a in arguments[1:]
    )


def _rows(
    template: str,
    params: tuple[Any, ...],
    epsilon: float,
    lanes: int,
    *,
    centred: bool,
    affine: Callable[[Any, Any], Any],
) -> tirx.PrimFunc:
    x, y = params[0], params[-1]
    dtype = str(x.dtype)
    *lead, width = x.shape
    rows = tir.product(lead)
    with tir.function(template.partition("/")[0], params, template) as build:
        x, y = tir.view(x, [rows, width]), tir.view(y, [rows, width])
        inverse = tirx.const(1.0, dtype) / tirx.Cast(dtype, width)
        with tir.rows_in_parallel(rows, rows * width) as row:
            mean: Any = tirx.const(0.0, dtype)
            if centred:
                total = _sum(width, lanes, dtype, lambda at: tir.load(x, [row, at]))
                mean = tir.bind(total * inverse)

            def squared(at: Any, mean: Any = mean) -> Any:
                deviation = tir.load(x, [row, at]) - mean
                return deviation * deviation

            variance = _sum(width, lanes, dtype, squared) * inverse
            scale = tir.bind(
                tirx.const(1.0, dtype) / tirx.sqrt(variance + tirx.const(epsilon, dtype))
            )

            def write(start: Any, count: int, mean: Any = mean, scale: Any = scale) -> None:
                with tir.vector(count) as lane:
                    at = start + lane
                    value = (tir.load(x, [row, at]) - mean) * scale
                    tir.store(y, [row, at], affine(value, at))

            tir.row(width, lanes, write)
    return build.get()


def _sum(width: Any, lanes: int, dtype: str, term: Callable[[Any], Any]) -> Any:
    """The sum of `term` along the row, in the lanes of several vectors joined at the end."""
    known = tir.static(width)
    chains = 1 if known is None else max(1, min(_CHAINS, known // lanes))
    partial = [tir.local([lanes], dtype) for _ in range(chains)]
    for vector in partial:
        tir.fill(vector, lanes, tirx.const(0.0, dtype))

    def accumulate(vector: Any, start: Any, count: int) -> None:
        with tir.vector(count) as lane:
            tir.store(vector, [lane], tir.load(vector, [lane]) + term(start + lane))

    def block(start: Any, count: int) -> None:
        for chain, vector in enumerate(partial[: max(1, count // lanes)]):
            accumulate(vector, start + tir.const(chain * lanes), min(count, lanes))

    tir.row(width, lanes * chains, block)
    for vector in partial[1:]:
        with tir.vector(lanes) as lane:
            joined = tir.load(partial[0], [lane]) + tir.load(vector, [lane])
            tir.store(partial[0], [lane], joined)
    return tir.horizontal(partial[0], lanes, lambda a, b: a + b)
