"""Quantisation by name: rewrites the products of a model, and their weights, before packing.

Each scheme is a pass of its own; the table below is the whole list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tvm import relax

from graphc.errors import ConfigError
from graphc.ir import Model
from graphc.passes import quantize_int8, quantize_static
from graphc.passes.scheme import Request, Scheme

SCHEMES: Final[Mapping[str, Scheme]] = {
    "int8": quantize_int8.dynamic,
    "int8-static": quantize_static.static,
    "w8": quantize_int8.weight_only,
}


def quantize(model: Model, request: Request) -> Model:
    """The model under a scheme; an unknown name is a ConfigError that lists the known ones."""
    scheme = SCHEMES.get(request.scheme)
    if scheme is None:
        known = ", ".join(sorted(SCHEMES)) or "none"
        raise ConfigError(f"quantize = {request.scheme!r}: expected one of {known}")
    model = scheme(model, request)
    relax.analysis.well_formed(model.mod)
    return model
