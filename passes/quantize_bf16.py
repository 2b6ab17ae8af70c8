"""The scheme of bfloat16:  x @ w  ----->  bf16(x) @ bf16(w), summed in float32.

All else stays float32. A value that several products read is rounded once.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy.typing as npt
from tvm import relax

from graphc.ir import Model
from graphc.passes.graph import Graph, rewrite
from graphc.passes.keep_quantized import is_product
from graphc.passes.node import Node
from graphc.passes.scheme import Request

op = relax.op


def bf16(model: Model, request: Request) -> Model:
    """Every product with a float32 weight of two dimensions in bfloat16."""
    del request
    return rewrite(model, _bf16)


def _bf16(graph: Graph) -> None:
    rounded: dict[Node, Node] = {}
    halves: dict[Node, Node] = {}
    for node in graph.walk():
        if not _is_plain_product(node):
            continue
        x, weight = node.inputs
        if x not in rounded:
            rounded[x] = graph.emit(op.astype(x.var, "bfloat16"), f"{x.name}.bf16")
        if weight not in halves:
            make = functools.partial(_rounded, graph.params, weight.name)
            name = f"{weight.name}.bf16"
            halves[weight] = graph.param(name, make, weight.static_shape or (), "bfloat16")
        product = op.matmul(rounded[x].var, halves[weight].var, out_dtype="float32")
        graph.replace(node, graph.emit(product, node.name))


def _is_plain_product(node: Node) -> bool:
    if node.op != "matmul" or len(node.inputs) != 2 or node.dtype != "float32":
        return False
    weight = node.inputs[1]
    return weight.op == "param" and weight.dtype == "float32" and is_product(weight, node)


def _rounded(params: Mapping[str, npt.NDArray[Any]], name: str) -> npt.NDArray[Any]:
    return params[name].astype(ml_dtypes.bfloat16)
