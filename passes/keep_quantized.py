"""Decide which quantised weights stay so: those that only products and row gathers read.

    matmul(x, permute_dims(w))   ----->   matmul(x, w.T)      w.T: the same codes, seen transposed
    take(w, rows, axis=0)        ----->   as it is, if every row holds whole groups
    anything else reads w        ----->   w is a plain float weight from here on, and so is said

What stays is left alone by the passes that follow; `quantized_products` makes kernels of it.
"""

from __future__ import annotations

from graphc.ir import Model
from graphc.passes.cancel_layout import permutation
from graphc.passes.graph import Graph, rewrite
from graphc.passes.node import Node
from graphc.passes.report import Report


def keep_quantized(model: Model, report: Report) -> Model:
    """Decide for every function of the model; a weight must suit all of them."""
    if not model.quantized:
        return model
    return rewrite(model, lambda graph: _keep(graph, report))


def _keep(graph: Graph, report: Report) -> None:
    for node in graph.nodes():
        if node.op != "param" or node.name not in graph.quantized:
            continue
        transposed = graph.quantized[node.name].transposed
        stranger = next((user for user in node.users if not suits(node, user, transposed)), None)
        if stranger is not None:
            del graph.quantized[node.name]
            report.miss(
                f"keep_quantized: {node.name} becomes float32: it is read by {stranger.op}"
                f" ({stranger.name}), not only by products and row gathers"
            )
            continue
        _transpose(graph, node, report)
        report.hit("keep_quantized")


def suits(weight: Node, user: Node, transposed: bool) -> bool:
    """Whether a user reads the weight, [N, K] if `transposed`, as kernels for few bits can."""
    if user.op == "permute_dims":
        return permutation(user) == (1, 0) and all(
            _is_product(user, reader, not transposed) for reader in user.users
        )
    return _is_product(weight, user, transposed) or is_gather(weight, user, transposed)


def _is_product(weight: Node, user: Node, transposed: bool) -> bool:
    return not transposed and is_product(weight, user)


def is_product(weight: Node, user: Node) -> bool:
    """x @ weight in float32 for any number of rows."""
    if user.op != "matmul" or weight.rank != 2 or user.dtype != "float32":
        return False
    x, second = user.inputs
    return second is weight and x is not weight and x.rank >= 2 and x.dtype == "float32"


def is_gather(weight: Node, user: Node, transposed: bool) -> bool:
    """weight[rows] where a row is what a product would sum over."""
    if user.op != "take" or weight.rank != 2 or not transposed or user.inputs[0] is not weight:
        return False
    return user.attrs.axis is not None and int(user.attrs.axis) in (0, -2)


def _transpose(graph: Graph, node: Node, report: Report) -> None:
    """Transposed views of the weight become weights of their own."""
    quantized = graph.quantized[node.name]
    for user in [user for user in node.users if user.op == "permute_dims"]:
        graph.at(user)
        flipped = quantized.flipped()
        depth, width = (int(extent) for extent in user.shape)
        view = graph.param(f"{node.name}.T", flipped.plain, (depth, width), "float32")
        graph.quantized[view.name] = flipped
        graph.replace(user, view)
        report.hit("transpose_quantized")
