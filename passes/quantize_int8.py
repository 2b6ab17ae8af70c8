"""The schemes of 8-bit weights, one scale for each output channel.

    w8      w ~ codes * scale                    float activations: Model.quantized, as GGUF's are
    int8    x ~ (q - zero) * step of its row     quantised while running (quantized_rows.py)

        y = (q @ codes - zero * sum codes) * step * scale

Weights that come in 8 bits already, with one scale for each column, keep their codes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

from graphc.ir import Model, QuantizedWeight
from graphc.passes.graph import Graph, rewrite
from graphc.passes.integer_product import Weight, integer_product
from graphc.passes.keep_quantized import is_product
from graphc.passes.node import Node
from graphc.passes.quantized_rows import quantize_rows_function
from graphc.passes.scheme import Request

SHALLOW = 16
"""Products over fewer elements gain nothing."""

op = relax.op


def weight_only(model: Model, request: Request) -> Model:
    """Every weight that only products read: int8 codes, float activations."""
    return rewrite(model, lambda graph: _weight_only(graph, request.keep))


def _weight_only(graph: Graph, keep: frozenset[str]) -> None:
    for weight in _weights(graph, keep):
        if weight.name not in graph.quantized:
            graph.quantized[weight.name] = by_channel(graph.params, weight, "float")


def dynamic(model: Model, request: Request) -> Model:
    """Every product with a weight in int8, its activations quantised row by row."""
    return rewrite(model, lambda graph: _dynamic(graph, request.keep))


def _dynamic(graph: Graph, keep: frozenset[str]) -> None:
    rows: dict[Node, tuple[Node, Node, Node]] = {}
    for node in graph.walk():
        if quantizable(graph, node, keep):
            x = node.inputs[0]
            if x not in rows:
                rows[x] = _quantized_rows(graph, x)
            codes, step, zero = rows[x]
            product = codes_of(graph, node.inputs[1])
            sums = integer_product(graph, codes, zero.var, product)
            y = op.multiply(op.astype(sums, "float32"), step.var)
            scales = scales_of(graph, node.inputs[1])
            graph.replace(node, graph.emit(op.multiply(y, scales.var), node.name))


def _quantized_rows(graph: Graph, x: Node) -> tuple[Node, Node, Node]:
    callee = graph.function(quantize_rows_function(x.shape), "quantize_rows")
    whole = graph.emit(tvm.ir.Call(callee, [x.var]), f"{x.name}.rows")
    codes, step, zero = (
        graph.emit(relax.TupleGetItem(whole.var, index), f"{x.name}.{part}")
        for index, part in enumerate(("codes", "step", "zero"))
    )
    return codes, step, zero


def quantizable(graph: Graph, node: Node, keep: frozenset[str] = frozenset()) -> bool:
    """A float32 product x @ w with a weight that has, or can be given, one scale per column."""
    if node.op != "matmul" or len(node.inputs) != 2 or node.name in keep:
        return False
    weight = node.inputs[1]
    if weight.op != "param" or not is_product(weight, node) or int(weight.shape[0]) < SHALLOW:
        return False
    known = graph.quantized.get(weight.name)
    return known is None or _is_by_channel(known, int(weight.shape[0]))


def codes_of(graph: Graph, weight: Node) -> Weight:
    """The int8 form of a weight [K, N]: its own codes, or rounded to its largest element."""
    depth, width = (int(extent) for extent in weight.shape)
    form = graph.quantized.get(weight.name) or by_channel(graph.params, weight, "int8")
    return Weight(weight.name, form.read_codes, depth, width, np.zeros((), np.int32))


def scales_of(graph: Graph, weight: Node) -> Node:
    """The scale of each column [N]."""
    form = graph.quantized.get(weight.name) or by_channel(graph.params, weight, "int8")
    width = int(weight.shape[1])
    name = f"{weight.name}.scales"
    return graph.param(name, lambda: form.read_scales().reshape(-1), (width,), "float32")


def by_channel(params: Mapping[str, np.ndarray], weight: Node, activation: str) -> QuantizedWeight:
    """A float weight [K, N] as int8 with one scale for each column."""
    read = functools.partial(params.__getitem__, weight.name)
    return QuantizedWeight(
        codes=lambda: rounded(read())[0],
        scales=lambda: rounded(read())[1],
        minima=None,
        group=int(weight.shape[0]),
        bits=8,
        activation=activation,
    )


def rounded(
    weight: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """codes [K, N] in -127 .. 127 and scales [1, N]; a column of zeros has scale 1."""
    scales = np.abs(weight).max(axis=0, keepdims=True) / np.float32(127)
    scales = np.where(scales > 0, scales, np.float32(1)).astype(np.float32)
    return np.rint(weight / scales).astype(np.int8), scales


def _is_by_channel(weight: QuantizedWeight, depth: int) -> bool:
    return weight.minima is None and weight.group == depth and not weight.transposed


def _weights(graph: Graph, keep: frozenset[str]) -> list[Node]:
    """Weights that are read by products only."""
    return [
        node
        for node in graph.nodes()
        if node.op == "param"
        and node.users
        and all(quantizable(graph, user, keep) for user in node.users)
    ]
