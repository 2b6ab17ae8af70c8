"""LSTM, GRU and RNN against ONNX Runtime over their attributes and optional inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled_runner import compare, compiled, run
from onnx import helper, numpy_helper
from relax_vm import build

RNG = np.random.default_rng(5)
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
INPUTS, HIDDEN = 5, 20


def _normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype("float32")


def _model(kind: str, directions: int, optional: tuple[str, ...], **attributes: Any) -> Any:
    """One node over x ["steps", "batch", 5]; `optional` names inputs that it has besides W, R."""
    width = GATES[kind] * HIDDEN
    constants = {"w": _normal(directions, width, INPUTS) / 2,
                 "r": _normal(directions, width, HIDDEN) / 4}  # fmt: skip
    if "b" in optional:
        constants["b"] = _normal(directions, 2 * width)
    if "p" in optional:
        constants["p"] = _normal(directions, 3 * HIDDEN)
    inputs: dict[str, Any] = {"x": ("float32", ("steps", "batch", INPUTS))}
    if "lens" in optional:
        inputs["lens"] = ("int32", ("batch",))
    for state in ("h", "c"):
        if state in optional:
            inputs[state] = ("float32", (directions, "batch", HIDDEN))
    order = [n if n in ("x", "w", "r") or n in optional else ""
             for n in ("x", "w", "r", "b", "lens", "h", "c", "p")]  # fmt: skip
    while not order[-1]:
        order.pop()
    if kind != "LSTM":
        order = order[:6]
    outputs = ["y", "y_h", "y_c"][: 3 if kind == "LSTM" else 2]
    direction = "bidirectional" if directions == 2 else attributes.pop("direction", "forward")
    node = helper.make_node(
        kind, order, outputs, hidden_size=HIDDEN, direction=direction, **attributes
    )
    return build([node], inputs, outputs, constants, opset=17)


def _feeds(model: Any, steps: int, batch: int) -> dict[str, np.ndarray]:
    sizes = {"steps": steps, "batch": batch}
    feeds = {}
    for port in model.graph.input:
        dims = port.type.tensor_type.shape.dim
        shape = [dim.dim_value or sizes[dim.dim_param] for dim in dims]
        feeds[port.name] = _normal(*shape)
    if "lens" in feeds:
        feeds["lens"] = RNG.permutation([steps, *RNG.integers(1, steps + 1, batch - 1)]).astype(
            "int32"
        )
    return feeds


CASES = [
    ("LSTM", 1, (), {}),
    ("LSTM", 2, ("b", "lens", "h", "c", "p"), {}),
    ("LSTM", 1, ("b", "lens"), {"direction": "reverse", "input_forget": 1}),
    ("LSTM", 2, ("b", "h"), {"activations": ["HardSigmoid", "ScaledTanh", "Softsign", "Sigmoid",
                             "LeakyRelu", "Elu"], "activation_alpha": [0.25, 0.7, 0.1, 0.8],
                             "activation_beta": [0.4, 0.9]}),
    ("GRU", 1, (), {}),
    ("GRU", 2, ("b", "lens", "h"), {"linear_before_reset": 1}),
    ("GRU", 1, ("b", "lens"), {"direction": "reverse"}),
    ("GRU", 1, (), {"linear_before_reset": 1, "activations": ["Sigmoid", "Relu"]}),
    ("RNN", 2, ("b", "lens", "h"), {}),
    ("RNN", 1, ("b",), {"direction": "reverse", "activations": ["Affine"],
                        "activation_alpha": [0.6], "activation_beta": [0.1]}),
    ("RNN", 1, ("b",), {"activations": ["Softplus"]}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "directions", "optional", "attributes"), CASES)
def test_layers(
    tmp_path: Path,
    kind: str,
    directions: int,
    optional: tuple[str, ...],
    attributes: dict[str, Any],
) -> None:
    model = _model(kind, directions, optional, **attributes)
    compare(model, tmp_path, _feeds(model, 6, 3), _feeds(model, 1, 2), tolerance=2e-5)


def test_clipped_gates(tmp_path: Path) -> None:
    for kind in GATES:
        model = _model(kind, 1, ("b", "h"), clip=0.5)
        compare(model, tmp_path, _feeds(model, 5, 2), tolerance=2e-5)


def test_half_precision_is_computed_in_float32(tmp_path: Path) -> None:
    wide = _model("LSTM", 1, ("b",))
    feeds = _feeds(wide, 4, 2)
    narrow = type(wide)()
    narrow.CopyFrom(wide)
    for index, tensor in enumerate(narrow.graph.initializer):
        half = numpy_helper.to_array(tensor).astype("float16")
        narrow.graph.initializer[index].CopyFrom(numpy_helper.from_array(half, tensor.name))
    narrow.graph.input[0].type.tensor_type.elem_type = 10
    got = run(compiled(narrow, tmp_path), {"x": feeds["x"].astype("float16")})
    want = run(compiled(wide, tmp_path), feeds)
    for half, full in zip(got, want, strict=True):
        assert half.dtype == np.float16
        np.testing.assert_allclose(half, full, atol=5e-3)
