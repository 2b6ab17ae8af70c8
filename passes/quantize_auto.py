"""The scheme auto: as many products in int8 as a bound on the outputs' error allows, if it pays.

For int8-static (given calibration data) and for int8: the products are ordered by what quantising
each one alone changes in its own result, and the worst k stay float, with the smallest k (found by
bisection) for which 1 - cosine of every output stays below `max_error`. Of what is left, and the
float model, the fastest wins, timed on this machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from graphc import env, testing
from graphc.errors import ConfigError
from graphc.ir import Model
from graphc.passes.graph import Graph
from graphc.passes.observe import observe
from graphc.passes.quantize_int8 import dynamic, quantizable, rounded
from graphc.passes.quantize_static import static
from graphc.passes.scheme import Request, Scheme

_ROWS = 512
"""How many rows of activations the order of the products is judged by."""


def auto(model: Model, request: Request) -> Model:
    """The fastest model within the bound."""
    run, time = request.run, request.time
    if run is None or time is None or not request.data:
        raise ConfigError(
            "quantize = 'auto': it runs the whole model, which a stepped language model is not: "
            "name a scheme, or use decoder = off"
        )
    expected = run(model, request.data)
    order = _by_error(model, request)
    best, fastest = model, time(model, request.data)
    env.log(1, f"  auto: float takes {fastest * 1e3:.3f} ms")
    for name, scheme in _candidates(request).items():
        found = _within_bound(model, request, scheme, order, expected)
        if found is None:
            env.log(1, f"  auto: {name} is out of bounds")
            continue
        kept, candidate = found
        seconds = time(candidate, request.data)
        env.log(1, f"  auto: {name} takes {seconds * 1e3:.3f} ms, {kept} products stay float")
        if seconds < fastest:
            best, fastest = candidate, seconds
    return best


def _candidates(request: Request) -> Mapping[str, Scheme]:
    if request.config.calibration is None:
        return {"int8": dynamic}
    return {"int8-static": static, "int8": dynamic}


def _within_bound(
    model: Model,
    request: Request,
    scheme: Scheme,
    order: Sequence[str],
    expected: Sequence[Sequence[npt.NDArray[np.generic]]],
) -> tuple[int, Model] | None:
    """The fewest products that have to stay float, and the model with the others quantised."""

    def attempt(kept: int) -> Model | None:
        candidate = scheme(model, replace(request, keep=frozenset(order[:kept])))
        assert request.run is not None
        error = _error(request.run(candidate, request.data), expected)
        env.log(2, f"    {kept} of {len(order)} products float: 1 - cosine = {error:.2e}")
        return candidate if error <= request.config.max_error else None

    best = attempt(0)
    if best is not None or not order:
        return None if best is None else (0, best)
    low, high, found = 0, len(order), None  # out of bounds at low
    while high - low > 1:
        middle = (low + high) // 2
        candidate = attempt(middle)
        if candidate is None:
            low = middle
        else:
            high, found = middle, candidate
    return None if found is None else (high, found)


def _error(
    found: Sequence[Sequence[npt.NDArray[np.generic]]],
    expected: Sequence[Sequence[npt.NDArray[np.generic]]],
) -> float:
    pairs = (
        testing.compare(a, b)
        for run, wanted in zip(found, expected, strict=True)
        for a, b in zip(run, wanted, strict=True)
        if b.dtype.kind == "f"
    )
    return max((1 - pair.cosine for pair in pairs), default=0.0)


def _by_error(model: Model, request: Request) -> list[str]:
    """Names of the products, those that quantising changes most first."""
    graph = Graph(model)
    products = [node for node in graph.nodes() if quantizable(graph, node)]
    inputs = list(dict.fromkeys(node.inputs[0].name for node in products))
    first = len(model.signatures["main"].outputs)
    assert request.run is not None
    (outputs,) = request.run(observe(model, inputs), request.data[:1])
    samples = dict(zip(inputs, outputs[first:], strict=True))
    errors = {
        node.name: own_error(
            np.asarray(samples[node.inputs[0].name], np.float32),
            np.asarray(graph.value(node.inputs[1]), np.float32),
        )
        for node in products
    }
    return sorted(errors, key=lambda name: -errors[name])


def own_error(x: npt.NDArray[np.float32], weight: npt.NDArray[np.float32]) -> float:
    """|xq @ wq - x @ w| / |x @ w| for rows and columns rounded to 8 bits."""
    x = x.reshape(-1, x.shape[-1])[:_ROWS]
    codes, scales = rounded(weight)
    step = (np.maximum(x.max(1), 0) - np.minimum(x.min(1), 0))[:, None] / 255
    step = np.where(step > 0, step, 1)
    plain = x @ weight
    small = (np.rint(x / step) * step) @ (codes * scales)
    return float(np.linalg.norm(small - plain)) / max(float(np.linalg.norm(plain)), 1e-30)
