"""One kernel for operators that differ in numbers, or in the names of dimensions, only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny_models
from onnx import helper, numpy_helper
from plan_runner import Compiled

from graphc import frontend
from graphc.ir import Model
from graphc.passes import pipeline
from graphc.passes.layout import layout
from graphc.passes.lower import lower
from graphc.targets import load as targets


def scaled(path: Path, scales: list[float]) -> Path:
    """x [n, 5], then softmax(x * scale) for every scale."""
    nodes, last = [], "x"
    for k in range(len(scales)):
        out = "y" if k == len(scales) - 1 else f"t{k}"
        nodes += [
            helper.make_node("Mul", [last, f"s{k}"], [f"m{k}"]),
            helper.make_node("Softmax", [f"m{k}"], [out], axis=-1),
        ]
        last = out
    weights = [numpy_helper.from_array(np.float32(n), f"s{k}") for k, n in enumerate(scales)]
    ports = [tiny_models.value("x", ["n", 5])], [tiny_models.value("y", ["n", 5])]
    return tiny_models.save(path, helper.make_graph(nodes, "g", *ports, weights))


@pytest.mark.parametrize(("count", "products"), [(2, 2), (3, 1), (9, 1)])
def test_numbers_become_weights(tmp_path: Path, count: int, products: int) -> None:
    scales = [2.5 + 0.3 * k for k in range(count)]
    path = scaled(tmp_path / "m.onnx", scales)
    model = lower(layout(_graph(path), targets.get("host")), targets.get("host"))
    assert len(model.mod.functions) == 2 + products, model.mod
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    expected = x.astype(np.float64)
    for scale in scales:
        powers = np.exp(expected * scale)
        expected = powers / powers.sum(axis=-1, keepdims=True)
    (found,) = Compiled(_graph(path))([x])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_dimensions_inside_of_expressions(tmp_path: Path) -> None:
    """Pictures of half their size, rounded up, get two equal sums of different operands."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[1, 1], strides=[2, 2]),
        helper.make_node("Add", ["p", "b"], ["q"]),
        helper.make_node("MaxPool", ["q"], ["r"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["r", "c"], ["s"]),
        helper.make_node("MaxPool", ["s"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    ]
    weights = [tiny_models.weight(name, 1, 3, 1, 1, seed=k) for k, name in enumerate("bc")]
    ports = (
        [tiny_models.value("x", ["n", 3, "height", "width"])],
        [onnx.ValueInfoProto(name="y")],
    )
    path = tiny_models.save(tmp_path / "m.onnx", helper.make_graph(nodes, "g", *ports, weights))
    model = lower(layout(_graph(path), targets.get("host")), targets.get("host"))
    names = [gvar.name_hint for gvar in model.mod.functions]
    assert len(names) <= 5, names


def _graph(path: Path) -> Model:
    return pipeline.graph(frontend.load(path), targets.get("host"))
