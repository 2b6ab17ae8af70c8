"""Counts a model's floating-point operations from the shapes that ONNX Runtime sees."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import onnx

from graphc.reference import Reference
from graphc.testing import Array

# Contractions only: what pointwise operators and reductions do beside them is not counted.
_COUNTED: Final = ("MatMul", "Gemm", "Conv", "ConvTranspose")


def count(model: Path, feeds: Mapping[str, Array], threads: int) -> int:
    """Multiplications and additions of the contractions in one run with these inputs."""
    graph = onnx.load(str(model), load_external_data=False).graph
    nodes = [node for node in graph.node if node.op_type in _COUNTED]
    constant = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    given = {*constant, *feeds}
    names = {n for node in nodes for n in (*node.input[:2], node.output[0])} - given
    values = Reference(model, threads, sorted(names)).run(feeds)
    shapes = constant | {name: array.shape for name, array in (values | dict(feeds)).items()}
    return sum(_of(node, shapes) for node in nodes)


def _of(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> int:
    left, right, out = (shapes[name] for name in (*node.input[:2], node.output[0]))
    if node.op_type == "Conv":  # weight [out, in / groups, *kernel]
        return 2 * math.prod(out) * math.prod(right[1:])
    if node.op_type == "ConvTranspose":  # weight [in, out / groups, *kernel]
        return 2 * math.prod(left) * math.prod(right[1:])
    transposed = any(a.name == "transA" and a.i for a in node.attribute)
    return 2 * math.prod(out) * left[-2 if transposed else -1]
