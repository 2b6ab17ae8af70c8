"""Tensors made of numbers: full, zeros, ones, arange and what is shaped like another."""

from __future__ import annotations

from collections.abc import Callable

from graphc.frontend.torch_export.call import Call, Result, Table


def _filled(number: float) -> Callable[[Call], Result]:
    def convert(call: Call) -> Result:
        return call.expand(call.scalar(number, call.dtype), call.shape)

    return convert


def _full(call: Call) -> Result:
    return call.expand(call.operand("fill_value", call.dtype), call.shape)


def _fill(call: Call) -> Result:
    return call.expand(call.operand("value", call.dtype), call.shape)


def _scalar_tensor(call: Call) -> Result:
    return call.scalar(call.arguments["s"], call.dtype)


def _arange(call: Call) -> Result:
    """start, start + step, ... below end."""
    bounds = (call.get("start", 0), call.arguments["end"], call.get("step", 1))
    dtype = call.dtype
    if all(isinstance(bound, (int, float)) for bound in bounds) and dtype.startswith("float"):
        wide = [call.scalar(float(bound), "float64") for bound in bounds]
        return call.cast(call.apply("Range", wide), dtype)
    whole = "int64" if dtype.startswith("float") else dtype
    return call.cast(call.apply("Range", [call.scalar(bound, whole) for bound in bounds]), dtype)


def _tril(upper: int) -> Callable[[Call], Result]:
    def convert(call: Call) -> Result:
        diagonal = call.scalar(call.get("diagonal", 0), "int64")
        return call.apply("Trilu", [call.value("self"), diagonal], upper=upper)

    return convert


_EMPTY = (
    "empty.memory_format",
    "empty_like.default",
    "new_empty.default",
    "empty_permuted.default",
)

TABLE: Table = {
    "full.default": _full,
    "full_like.default": _full,
    "new_full.default": _full,
    "fill.Scalar": _fill,
    "fill.Tensor": _fill,
    "zeros.default": _filled(0),
    "zeros_like.default": _filled(0),
    "new_zeros.default": _filled(0),
    "ones.default": _filled(1),
    "ones_like.default": _filled(1),
    "new_ones.default": _filled(1),
    # Whatever is in them is overwritten, or the model would not give the same twice.
    **dict.fromkeys(_EMPTY, _filled(0)),
    "scalar_tensor.default": _scalar_tensor,
    "arange.default": _arange,
    "arange.start": _arange,
    "arange.start_step": _arange,
    "tril.default": _tril(0),
    "triu.default": _tril(1),
}
