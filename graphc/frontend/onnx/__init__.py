"""The ONNX importer: an .onnx file -> Model, on Relax, with shapes kept symbolic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from graphc.errors import refusal
from graphc.frontend.onnx.convert import convert
from graphc.frontend.onnx.operators import REGISTRY
from graphc.frontend.onnx.reader import read
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
    return convert(graph, reader, REGISTRY, given, str(path), found)
