"""Quantisation by name: rewrites the products of a model, and their weights, before packing.

Each scheme is a pass of its own; the table below is the whole list, but for those of few bits,
whose names say how many (nbits_scheme.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tvm import relax

from graphc.errors import ConfigError
from graphc.ir import Model
from graphc.passes import quantize_auto, quantize_bf16, quantize_int8, quantize_static
from graphc.passes.nbits_scheme import EXAMPLES, NbitsScheme, parse
from graphc.passes.scheme import Request, Scheme

SCHEMES: Final[Mapping[str, Scheme]] = {
    "auto": quantize_auto.auto,
    "bf16": quantize_bf16.bf16,
    "int8": quantize_int8.dynamic,
    "int8-static": quantize_static.static,
    "w8": quantize_int8.weight_only,
}


def of_few_bits(scheme: str | None) -> NbitsScheme | None:
    """The scheme when it is one of weights of few bits, which comes before the graph passes."""
    return None if scheme is None else parse(scheme)


def quantize(model: Model, request: Request) -> Model:
    """The model under a scheme; an unknown name is a ConfigError that lists the known ones."""
    scheme = SCHEMES.get(request.scheme)
    if scheme is None:
        known = ", ".join([*sorted(SCHEMES), *EXAMPLES])
        raise ConfigError(f"quantize = {request.scheme!r}: expected one of {known}")
    model = scheme(model, request)
    relax.analysis.well_formed(model.mod)
    return model
