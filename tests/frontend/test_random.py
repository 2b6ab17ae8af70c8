"""Random attributes, many nodes to a graph, against ONNX Runtime."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from relax_vm import build, compare

COUNT = 14


class Graph:
    """Collects nodes that read one input and their constants."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}

    def constant(self, values: object, dtype: str = "int64") -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.array(values, dtype)
        return name

    def add(self, op_type: str, inputs: list[str], **attributes: Any) -> None:
        output = f"y{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [output], **attributes))

    def model(self, shape: tuple[int | str, ...]) -> onnx.ModelProto:
        names = [node.output[0] for node in self.nodes]
        return build(self.nodes, {"x": ("float32", shape)}, names, self.constants)


def _feed(*shape: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).normal(size=shape).astype("float32")}


@pytest.mark.parametrize("seed", range(3))
def test_slices(tmp_path: Path, seed: int) -> None:
    graph = Graph(seed)
    for _ in range(COUNT):
        axes = graph.rng.sample([0, 1, 2, -1][:3], graph.rng.randint(1, 3))
        starts, ends, steps = [], [], []
        for _ in axes:
            step = graph.rng.choice([1, 1, 2, 3, -1, -2])
            low, high = graph.rng.choice([0, 1, -5, -100]), graph.rng.choice([4, 5, -1, 100])
            starts.append(high if step < 0 else low)
            ends.append(low if step < 0 else high)
            steps.append(step)
        names = [graph.constant(values) for values in (starts, ends, axes, steps)]
        graph.add("Slice", ["x", *names])
    compare(graph.model((6, 5, 7)), tmp_path, _feed(6, 5, 7))


@pytest.mark.parametrize("seed", range(2))
def test_convolutions(tmp_path: Path, seed: int) -> None:
    graph = Graph(seed)
    rng = graph.rng
    for _ in range(COUNT):
        kernel = [rng.randint(1, 3), rng.randint(1, 3)]
        strides = [rng.randint(1, 3), rng.randint(1, 3)]
        pads = [rng.randint(0, k - 1) for k in (*kernel, *kernel)]
        if rng.random() < 0.6:
            groups = rng.choice([1, 2, 4])
            weight = np.random.default_rng(seed).normal(size=(8, 4 // groups, *kernel))
            dilations = [rng.randint(1, 2), rng.randint(1, 2)]
            graph.add("Conv", ["x", graph.constant(weight, "float32")], group=groups, pads=pads,
                      strides=strides, dilations=dilations)  # fmt: skip
        else:
            weight = np.random.default_rng(seed).normal(size=(4, 3, *kernel))
            extra = [rng.randint(0, s - 1) for s in strides]
            graph.add("ConvTranspose", ["x", graph.constant(weight, "float32")], pads=pads,
                      strides=strides, output_padding=extra)  # fmt: skip
    compare(graph.model(("n", 4, 9, 8)), tmp_path, _feed(2, 4, 9, 8), tolerance=5e-5)


@pytest.mark.parametrize("seed", range(2))
def test_pools(tmp_path: Path, seed: int) -> None:
    graph = Graph(seed)
    rng = graph.rng
    for _ in range(COUNT):
        kernel = [rng.randint(1, 3), rng.randint(1, 3)]
        attributes: dict[str, Any] = {
            "kernel_shape": kernel,
            "strides": [rng.randint(1, 3), rng.randint(1, 3)],
            "pads": [rng.randint(0, k - 1) for k in (*kernel, *kernel)],
            "ceil_mode": rng.randint(0, 1),
        }
        kind = rng.choice(["MaxPool", "AveragePool"])
        if kind == "AveragePool":
            attributes["count_include_pad"] = rng.randint(0, 1)
        graph.add(kind, ["x"], **attributes)
    compare(graph.model(("n", 3, "h", 8)), tmp_path, _feed(2, 3, 9, 8))


@pytest.mark.parametrize("seed", range(3))
def test_resizes(tmp_path: Path, seed: int) -> None:
    graph = Graph(seed)
    rng = graph.rng
    for _ in range(COUNT):
        mode = rng.choice(["nearest", "linear", "cubic"])
        attributes: dict[str, Any] = {
            "mode": mode,
            "coordinate_transformation_mode": rng.choice(
                ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
            ),
        }
        if mode == "nearest":
            attributes["nearest_mode"] = rng.choice(
                ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
            )
        if mode == "cubic":
            attributes["cubic_coeff_a"] = rng.choice([-0.75, -0.5])
            attributes["exclude_outside"] = rng.randint(0, 1)
        sizes = [1, 2, rng.randint(1, 12), rng.randint(1, 12)]
        graph.add("Resize", ["x", "", "", graph.constant(sizes)], **attributes)
    compare(graph.model((1, 2, 5, 6)), tmp_path, _feed(1, 2, 5, 6), tolerance=1e-4)


@pytest.mark.parametrize("seed", range(2))
def test_pads_and_tiles(tmp_path: Path, seed: int) -> None:
    graph = Graph(seed)
    rng = graph.rng
    for _ in range(COUNT):
        mode = rng.choice(["constant", "constant", "reflect", "edge", "wrap", "tile"])
        if mode == "tile":
            graph.add("Tile", ["x", graph.constant([rng.randint(1, 3) for _ in range(3)])])
            continue
        low = -1 if mode == "constant" else 0
        pads = [rng.randint(low, 2) for _ in range(6)]
        inputs = ["x", graph.constant(pads)]
        if mode == "constant" and rng.random() < 0.5:
            inputs.append(graph.constant(1.5, "float32"))
        graph.add("Pad", inputs, mode=mode)
    compare(graph.model(("n", 4, "m")), tmp_path, _feed(3, 4, 5))


@pytest.mark.parametrize("seed", range(2))
def test_reductions_and_layouts(tmp_path: Path, seed: int) -> None:
    graph = Graph(seed)
    rng = graph.rng
    for _ in range(COUNT):
        axes = rng.sample([0, 1, 2], rng.randint(1, 3))
        axes = [axis - rng.choice([0, 3]) for axis in axes]
        kind = rng.choice(["Sum", "Mean", "Max", "Min", "L2", "transpose", "softmax", "reshape"])
        if kind == "transpose":
            graph.add("Transpose", ["x"], perm=rng.sample([0, 1, 2], 3))
        elif kind == "softmax":
            graph.add("Softmax", ["x"], axis=axes[0])
        elif kind == "reshape":
            target = rng.choice([[-1, 4], [0, -1], [0, 2, 2, -1], [-1], [0, 0, -1, 1]])
            graph.add("Reshape", ["x", graph.constant(target)])
        else:
            graph.add(f"Reduce{kind}", ["x", graph.constant(axes)], keepdims=rng.randint(0, 1))
    compare(graph.model(("n", 4, "m")), tmp_path, _feed(3, 4, 5))
