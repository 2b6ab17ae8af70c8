"""The plain form of a model: every composite as its own definition, nothing packed."""

from __future__ import annotations

from dataclasses import replace

from tvm import relax

from graphc.ir import Model


def expand(model: Model) -> Model:
    """The same computation in the operators that composites stand for."""
    return replace(model, mod=relax.transform.InlinePrivateFunctions()(model.mod))
