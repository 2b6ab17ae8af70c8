"""Products with quantised weights and gathers from them -> the composites that kernels are for.

    matmul(x, w)           ----->   graphc.quantized_matmul(x, codes, scales[, minima])
    take(w, rows, axis=0)  ----->   graphc.quantized_take(codes, scales[, minima], rows)

Codes, scales and minima become weights of the model; two views of one weight (an embedding and the
head tied to it) share them.
"""

from __future__ import annotations

from dataclasses import replace

import tvm

from graphc.ir import Model, QuantizedWeight
from graphc.passes.graph import Graph, rewrite
from graphc.passes.keep_quantized import is_gather, is_product
from graphc.passes.node import Node
from graphc.passes.quantized import matmul_function, operand_shapes, take_function
from graphc.passes.report import Report


def with_activations(model: Model, kind: str) -> Model:
    """The model whose products take activations of this kind: "auto" leaves each as it is."""
    if kind == "auto":
        return model
    chosen = {name: replace(weight, activation=kind) for name, weight in model.quantized.items()}
    return replace(model, quantized=chosen)


def quantized_products(model: Model, report: Report) -> Model:
    """Rewrite every function of the model; weights that are read otherwise stay plain."""
    if not model.quantized:
        return model
    return rewrite(model, lambda graph: _rewrite(graph, report))


def _rewrite(graph: Graph, report: Report) -> None:
    operands: dict[int, list[Node]] = {}
    for node in graph.walk():
        for source in node.inputs:
            weight = graph.quantized.get(source.name) if source.op == "param" else None
            if weight is None:
                continue
            new = _composite(graph, node, source, weight, operands)
            if new is not None:
                graph.replace(node, new)
                report.hit("quantized_products")
                break
            report.miss(f"quantized_products: {node.name} ({node.op}) reads {source.name} plain")


def _composite(
    graph: Graph,
    node: Node,
    source: Node,
    weight: QuantizedWeight,
    known: dict[int, list[Node]],
) -> Node | None:
    first, second = (int(extent) for extent in source.shape) if source.rank == 2 else (0, 0)
    shape = (second, first) if weight.transposed else (first, second)
    if is_product(source, node) and not weight.transposed:
        x = node.inputs[0]
        function = matmul_function(weight, shape, x.shape)
        arguments = [x, *_operands(graph, source, weight, shape, known)]
        name = "quantized_matmul"
    elif is_gather(source, node, weight.transposed):
        rows = node.inputs[1]
        function = take_function(weight, shape, rows.shape, rows.dtype)
        arguments = [*_operands(graph, source, weight, shape, known), rows]
        name = "quantized_take"
    else:
        return None
    callee = graph.function(function, name)
    return graph.emit(tvm.ir.Call(callee, [argument.var for argument in arguments]), node.name)


def _operands(
    graph: Graph,
    source: Node,
    weight: QuantizedWeight,
    shape: tuple[int, int],
    known: dict[int, list[Node]],
) -> list[Node]:
    """The params of codes, scales and minima, made once for all views of a weight."""
    if id(weight.codes) not in known:
        values = {
            "codes": weight.codes,
            "scales": weight.scales,
            "minima": weight.minima,
        }
        found = []
        for part, (extents, dtype) in operand_shapes(weight, shape).items():
            value = values[part]
            assert value is not None, part
            found.append(graph.param(f"{source.name}.{part}", value, extents, dtype))
        known[id(weight.codes)] = found
    return known[id(weight.codes)]
