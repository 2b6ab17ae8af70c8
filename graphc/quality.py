"""How far a quantised model is from the float one: for each layer, and at the outputs.

cosine = <a, b> / (|a| |b|)        error = |a - b| / |b|        b from the float model
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from graphc import testing
from graphc.ir import Model
from graphc.passes.graph import Graph
from graphc.passes.observe import observe
from graphc.passes.scheme import Feeds, Run


@dataclass(frozen=True)
class Distance:
    """A value of the quantised model beside the float model's; errors of earlier layers add up."""

    name: str
    cosine: float
    error: float


@dataclass(frozen=True)
class Quality:
    """`layers` are the quantised products, worst first."""

    scheme: str
    outputs: tuple[Distance, ...]
    layers: tuple[Distance, ...]

    @property
    def cosine(self) -> float:
        """That of the worst output."""
        return min((output.cosine for output in self.outputs), default=1.0)

    def record(self) -> dict[str, Any]:
        """Plain data for the manifest."""
        return {
            "scheme": self.scheme,
            "outputs": [_record(distance) for distance in self.outputs],
            "layers": [_record(distance) for distance in self.layers],
        }


def measure(
    plain: Model, quantized: Model, scheme: str, run: Run, data: Sequence[Feeds]
) -> Quality:
    """Both models on the same inputs; every product of the float model is a layer."""
    names = layers_of(plain, quantized)
    found = run(observe(quantized, names), data)
    expected = run(observe(plain, names), data)
    signature = plain.signatures["main"]
    labels = [*(port.name for port in signature.outputs), *names]
    distances = [
        distance(label, [x[number] for x in found], [x[number] for x in expected])
        for number, label in enumerate(labels)
        if np.issubdtype(np.asarray(expected[0][number]).dtype, np.floating)
    ]
    outputs = {port.name for port in signature.outputs}
    layers = [d for d in distances if d.name not in outputs]
    return Quality(
        scheme,
        tuple(d for d in distances if d.name in outputs),
        tuple(sorted(layers, key=lambda layer: layer.cosine)),
    )


def layers_of(plain: Model, quantized: Model) -> list[str]:
    """Names of the float model's products that the quantised one has too."""
    kept = [node.name for node in Graph(quantized).nodes()]
    single = {name for name in kept if kept.count(name) == 1}
    products = (node.name for node in Graph(plain).nodes() if node.op == "matmul")
    return [name for name in dict.fromkeys(products) if name in single]


def distance(
    name: str,
    found: Sequence[npt.NDArray[np.generic]],
    expected: Sequence[npt.NDArray[np.generic]],
) -> Distance:
    """The worst of several runs."""
    pairs = [testing.compare(*pair) for pair in zip(found, expected, strict=True)]
    return Distance(name, min(d.cosine for d in pairs), max(d.norm for d in pairs))


def _record(distance: Distance) -> dict[str, Any]:
    return {
        "name": distance.name,
        "cosine": round(distance.cosine, 6),
        "error": float(f"{distance.error:.3g}"),
    }
