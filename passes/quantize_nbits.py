"""Weights of few bits for the products and tables of a float model, in the form that GGUF's have.

A weight qualifies when only products and row gathers read it and whole groups fit its depth. This
runs before the graph passes, so that what they derive from the model keeps the packed weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from tvm import relax, tirx

from graphc import env
from graphc.errors import ConfigError
from graphc.ir import Model, Port, QuantizedWeight
from graphc.passes import rounding
from graphc.passes.graph import Graph
from graphc.passes.keep_quantized import suits
from graphc.passes.nbits_scheme import NbitsScheme
from graphc.passes.node import Node
from graphc.passes.scheme import Feeds, Run

_LEAST = 1 << 12  # elements; smaller weights cost nothing
_MULTIPLE = 8  # of a group: the kernels read whole vectors
_MOMENTS = "graphc.moments."

op = relax.op


def quantize_nbits(
    model: Model, scheme: NbitsScheme, run: Run | None = None, data: Sequence[Feeds] = ()
) -> Model:
    """The model with quantised weights; `run` and `data` are for GPTQ, which learns from inputs."""
    (name,) = model.signatures
    graph = Graph(model, name)
    chosen = {node.name: node for node in graph.nodes() if _transposed(graph, node) is not None}
    moments = {}
    if scheme.gptq:
        if run is None or not data:
            raise ConfigError("quantize: GPTQ learns from inputs: give some with --calibration")
        moments = _moments(model, name, set(chosen), run, data)
    found: dict[str, QuantizedWeight] = {}
    for weight, node in chosen.items():
        made = _quantized(graph, node, scheme, moments.get(weight))
        if made is None:
            env.log(2, f"quantize: {weight} {node.static_shape} stays float32: no group fits it")
            continue
        found[weight] = made
    if not found:
        raise ConfigError(
            f"quantize: no product or table of the model has a float32 weight of {_LEAST} elements "
            f"or more whose depth is a multiple of {_MULTIPLE}: there is nothing to quantise"
        )
    return dataclasses.replace(model, quantized={**model.quantized, **found})


def _transposed(graph: Graph, node: Node) -> bool | None:
    """How a plain weight that can be quantised lies; None for other nodes."""
    if node.op != "param" or node.rank != 2 or node.dtype != "float32" or not node.users:
        return None
    if node.name in graph.quantized or int(np.prod(node.static_shape or (0,))) < _LEAST:
        return None
    for transposed in (True, False):
        if all(suits(node, user, transposed) for user in node.users):
            return transposed
    return None


def _quantized(
    graph: Graph, node: Node, scheme: NbitsScheme, moments: npt.NDArray[np.float64] | None
) -> QuantizedWeight | None:
    transposed = bool(_transposed(graph, node))
    value = graph.value(node)
    weight = np.ascontiguousarray(value.T if transposed else value)
    group = _group(weight.shape[0], scheme.group)
    if group is None:
        return None
    bits = scheme.bits
    if any(user.op == "take" for user in node.users):
        bits = scheme.embedding_bits
    elif _is_last(graph, node):
        bits = scheme.head_bits
    grid = rounding.grid(weight, bits, group, scheme.symmetric or bits == 8)
    if moments is None:
        codes = rounding.nearest(weight, grid)
    else:
        codes = rounding.gptq(weight, grid, moments)
    return dataclasses.replace(grid.packed(codes, "int8"), transposed=transposed)


def _group(depth: int, wanted: int) -> int | None:
    """The largest group up to the one wanted that divides the depth."""
    sizes = range(wanted, 0, -1)
    return next((n for n in sizes if depth % n == 0 and n % _MULTIPLE == 0), None)


def _is_last(graph: Graph, node: Node) -> bool:
    """Whether no other product follows: a language model's head."""
    seen: set[Node] = set()
    stack = [reader for user in node.users for reader in (user, *user.users)]
    stack = [reader for reader in stack if reader.op == "matmul" and node in _sources(reader)]
    pending = [user for product in stack for user in product.users]
    while pending:
        reader = pending.pop()
        if reader in seen:
            continue
        if reader.op == "matmul":
            return False
        seen.add(reader)
        pending.extend(reader.users)
    return True


def _sources(product: Node) -> list[Node]:
    """A product's weight as it lies in the model."""
    second = product.inputs[1]
    return [second, *second.inputs] if second.op == "permute_dims" else [second]


def _moments(
    model: Model, name: str, weights: set[str], run: Run, data: Sequence[Feeds]
) -> dict[str, npt.NDArray[np.float64]]:
    """For each weight that products read, the sum of x x^T over all rows of their inputs."""
    graph = Graph(model, name)
    inputs: dict[Node, list[str]] = {}
    for node in graph.nodes():
        if node.op == "matmul" and len(node.inputs) == 2:
            for source in _sources(node):
                if source.op == "param" and source.name in weights:
                    inputs.setdefault(node.inputs[0], []).append(source.name)
    signature = model.signatures[name]
    first, ports = len(graph.outputs), list(signature.outputs)
    for number, x in enumerate(inputs):
        graph.at(x)
        gram = _gram(graph, x)
        graph.outputs.append(gram)
        ports.append(Port(f"{_MOMENTS}{number}", "float32", gram.shape))
    signature = dataclasses.replace(signature, outputs=tuple(ports))
    observed = dataclasses.replace(graph.finish(), signatures={name: signature})
    from graphc.passes import pipeline

    results = run(pipeline.graph(observed, None), data)
    found: dict[str, npt.NDArray[np.float64]] = {}
    for number, names in enumerate(inputs.values()):
        total = sum(np.asarray(result[first + number], np.float64) for result in results)
        for weight in names:
            found[weight] = found[weight] + total if weight in found else np.asarray(total)
    return found


def _gram(graph: Graph, x: Node) -> Node:
    """x^T x over all leading dimensions: [K, K]."""
    rows = tirx.IntImm("int64", 1)
    for dim in x.shape[:-1]:
        rows = rows * dim
    flat = graph.emit(op.reshape(x.var, (rows, x.shape[-1])))
    return graph.emit(op.matmul(op.permute_dims(flat.var), flat.var))
