"""The scheme int8-static: ranges of activations learnt once, from calibration data.

    q = clamp(round(x / (scale * smooth)) + zero), uint8
    y = (q @ codes - zero * sum codes) * scale * scale of the column

Rounding is pointwise and fuses with what makes x; the products are those of the scheme int8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tvm import relax

from graphc.errors import ConfigError
from graphc.ir import Model
from graphc.passes import calibrate
from graphc.passes.calibrate import LEVELS, Range
from graphc.passes.graph import Graph, rewrite
from graphc.passes.integer_product import Weight, integer_product
from graphc.passes.node import Node
from graphc.passes.observe import observe
from graphc.passes.quantize_int8 import codes_of, quantizable, rounded, scales_of
from graphc.passes.scheme import Request

op = relax.op


def static(model: Model, request: Request) -> Model:
    """Every product with a weight in int8, its activations in ranges learnt from the data."""
    if request.run is None or not request.data:
        raise ConfigError(
            f"quantize = {request.scheme!r}: it learns from inputs of the whole model, which a "
            "stepped language model has not: use int8, or decoder = off"
        )
    names = _activations(model)
    watched = observe(model, names)
    first = len(model.signatures["main"].outputs)
    runs = [outputs[first:] for outputs in request.run(watched, request.data)]
    samples = {
        name: [np.asarray(run[number], np.float32) for run in runs]
        for number, name in enumerate(names)
    }
    return rewrite(model, lambda graph: _static(graph, samples, request))


def _activations(model: Model) -> list[str]:
    graph = Graph(model)
    found = (node.inputs[0].name for node in graph.nodes() if quantizable(graph, node))
    return list(dict.fromkeys(found))


def _static(graph: Graph, samples: dict[str, list[calibrate.Values]], request: Request) -> None:
    codes: dict[Node, Node] = {}
    for node in graph.walk():
        if not quantizable(graph, node, request.keep) or node.inputs[0].name not in samples:
            continue
        x, weight = node.inputs
        seen = samples[x.name]
        if request.config.smooth and weight.name not in graph.quantized:
            product = _smoothed(graph, weight, seen, request.config.smooth)
            parts = [sample / product.factors for sample in seen]
            span = _range(parts, request)
            left = _codes(graph, x, span, product.factors)
            right, scales = product.weight, graph.constant(product.scales, f"{weight.name}.scales")
        else:
            span = _range(seen, request)
            if x not in codes:
                codes[x] = _codes(graph, x, span, None)
            left, right, scales = codes[x], codes_of(graph, weight), scales_of(graph, weight)
        sums = integer_product(graph, left, span.zero, right)
        y = op.multiply(op.astype(sums, "float32"), op.multiply(scales.var, _number(span.scale)))
        graph.replace(node, graph.emit(y, node.name))


def _range(samples: Sequence[calibrate.Values], request: Request) -> Range:
    values = np.concatenate([sample.reshape(-1) for sample in samples])
    return calibrate.METHODS[request.config.calibration_method](values)


def _codes(graph: Graph, x: Node, span: Range, factors: npt.NDArray[np.float32] | None) -> Node:
    """clamp(round(x / (scale * factor)) + zero) as uint8; the division is a multiplication."""
    inverse = np.float32(1) / np.float32(span.scale)
    if factors is None:
        steps: relax.Expr = _number(float(inverse))
    else:
        steps = graph.constant(inverse / factors, f"{x.name}.steps").var
    value = op.add(op.round(op.multiply(x.var, steps)), _number(float(span.zero)))
    return graph.emit(op.astype(op.clip(value, 0, LEVELS), "uint8"), f"{x.name}.codes")


def _number(value: float) -> relax.Expr:
    return relax.const(value, "float32")


@dataclass(frozen=True)
class _Smoothed:
    """A weight that has taken over the large columns of its activations."""

    weight: Weight
    scales: npt.NDArray[np.float32]
    factors: npt.NDArray[np.float32]


def _smoothed(
    graph: Graph, weight: Node, samples: Sequence[calibrate.Values], exponent: float
) -> _Smoothed:
    value = graph.value(weight).astype(np.float32)
    factors = calibrate.smoothing(samples, value, exponent)
    codes, scales = rounded(value * factors[:, None])
    depth, width = codes.shape
    zero = np.zeros((), np.int32)
    made = Weight(weight.name, lambda: codes, depth, width, zero)
    return _Smoothed(made, scales.reshape(-1), factors)
