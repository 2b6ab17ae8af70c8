"""Lets a model return inner values too, for calibration and for reports on single layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graphc.ir import Model, Port
from graphc.passes.graph import Graph


def observe(model: Model, names: Sequence[str], function: str = "main") -> Model:
    """The model with the values of these names as further outputs, in this order."""
    graph = Graph(model, function)
    found = {node.name: node for node in reversed(graph.nodes())}
    signature = model.signatures[function]
    ports = list(signature.outputs)
    for number, name in enumerate(names):
        node = found[name]
        graph.outputs.append(node)
        ports.append(Port(f"observed.{number}", node.dtype, node.shape))
    signatures = {**model.signatures, function: replace(signature, outputs=tuple(ports))}
    return replace(graph.finish(), signatures=signatures)
