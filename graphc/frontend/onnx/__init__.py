"""The ONNX importer: an .onnx file -> Model, on Relax, with shapes kept symbolic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from graphc.errors import refusal
from graphc.frontend.onnx.convert import Function, convert
from graphc.frontend.onnx.operators import REGISTRY
from graphc.frontend.onnx.reader import read
from graphc.frontend.onnx.specialise import choices, sized
from graphc.frontend.onnx.support import blockers
from graphc.frontend.onnx.symbols import parse_bounds
from graphc.ir import Model


def load(
    path: Path,
    *,
    dims: Mapping[str, int | tuple[int, int | None]] | None = None,
    outputs: Sequence[str] = (),
) -> Model:
    """Imports the model at `path`; see `graphc.frontend.load`."""
    given = parse_bounds(dims or {})
    graph, reader = read(path, tuple(outputs))
    found = blockers(graph, REGISTRY)
    if not graph.convertible:
        raise refusal(str(path), found)
    functions = choices(graph)
    if not functions:
        return convert(graph, reader, REGISTRY, given, str(path), found)
    model: Model | None = None
    for name, chosen, choice in functions:
        sizes = sized(given, chosen, [other for _, other, _ in functions])
        model = convert(
            chosen, reader, REGISTRY, {dim: given[dim] for dim in sizes}, str(path), found,
            Function(name, choice, model),
        )  # fmt: skip
    assert model is not None
    return model
