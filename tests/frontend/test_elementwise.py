"""Elementwise operators against ONNX Runtime: values, types, broadcasting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from relax_vm import build, compare

RNG = np.random.default_rng(7)
SHAPE = ("n", 5)


def _floats(low: float, high: float, dtype: str = "float32") -> np.ndarray:
    return RNG.uniform(low, high, (3, 5)).astype(dtype)


# One graph holds many operators, so that it is compiled once.
UNARY: list[tuple[str, tuple[float, float], int, dict[str, Any]]] = [
    *((name, (-3, 3), 20, {}) for name in (
        "Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "Exp", "Sin", "Cos", "Atan", "Sinh",
        "Cosh", "Asinh", "Tanh", "Erf", "Sigmoid", "Relu", "Softplus", "Softsign", "HardSwish",
        "Mish", "LeakyRelu", "Elu", "Selu", "Celu", "ThresholdedRelu", "HardSigmoid", "Gelu",
        "Shrink", "Identity", "Tan", "IsNaN", "IsInf",
    )),
    *((name, (0.1, 3), 20, {}) for name in ("Log", "Sqrt", "Reciprocal")),
    *((name, (-0.9, 0.9), 20, {}) for name in ("Asin", "Acos", "Atanh")),
    ("Acosh", (1.1, 4), 20, {}),
    ("LeakyRelu", (-3, 3), 20, {"alpha": 0.3}),
    ("Elu", (-3, 3), 20, {"alpha": 1.7}),
    ("Selu", (-3, 3), 20, {"alpha": 1.2, "gamma": 0.7}),
    ("Celu", (-3, 3), 20, {"alpha": 2.0}),
    ("ThresholdedRelu", (-3, 3), 20, {"alpha": 0.5}),
    ("HardSigmoid", (-3, 3), 20, {"alpha": 0.3, "beta": 0.4}),
    ("Gelu", (-3, 3), 20, {"approximate": "tanh"}),
    ("Shrink", (-3, 3), 20, {"bias": 0.2, "lambd": 0.9}),
]  # fmt: skip


def test_unary(tmp_path: Path) -> None:
    nodes, inputs, feeds = [], {}, {}
    for number, (name, (low, high), _, attributes) in enumerate(UNARY):
        nodes.append(helper.make_node(name, [f"x{number}"], [f"y{number}"], **attributes))
        inputs[f"x{number}"] = ("float32", SHAPE)
        feeds[f"x{number}"] = _floats(low, high)
    feeds["x5"][0] = [0.5, 1.5, 2.5, -0.5, -2.5]  # Round: ties to even
    names = [f"y{number}" for number in range(len(UNARY))]
    compare(build(nodes, inputs, names), tmp_path, feeds, tolerance=2e-5)


def test_is_nan_and_is_inf(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("IsNaN", ["x"], ["nan"]),
        helper.make_node("IsInf", ["x"], ["both"]),
        helper.make_node("IsInf", ["x"], ["positive"], detect_negative=0),
        helper.make_node("IsInf", ["x"], ["negative"], detect_positive=0),
        helper.make_node("IsInf", ["x"], ["neither"], detect_positive=0, detect_negative=0),
    ]
    x = np.array([np.nan, np.inf, -np.inf, 0, 1], "float32")
    names = ["nan", "both", "positive", "negative", "neither"]
    compare(build(nodes, {"x": ("float32", ("n",))}, names), tmp_path, {"x": x})


@pytest.mark.parametrize("dtype", ["float32", "int64", "int32", "uint8"])
def test_binary(tmp_path: Path, dtype: str) -> None:
    names = ["Add", "Sub", "Mul", "Div", "Equal", "Less", "Greater", "LessOrEqual",
             "GreaterOrEqual", "Max", "Min"]  # fmt: skip
    if dtype == "float32":
        a, b = _floats(-5, 5), _floats(1, 5)[0]
    else:
        low = 0 if dtype == "uint8" else -20
        a = RNG.integers(low, 20, (3, 5)).astype(dtype)
        b = RNG.integers(1, 5, 5).astype(dtype)
        if dtype != "uint8":
            b[::2] *= -1
    nodes = [helper.make_node(name, ["a", "b"], [name]) for name in names]
    if dtype != "float32":
        nodes.append(helper.make_node("Mod", ["a", "b"], ["Mod"]))
        names.append("Mod")
    nodes.append(helper.make_node("Mod", ["a", "b"], ["fmod"], fmod=1))
    inputs = {"a": (dtype, SHAPE), "b": (dtype, (5,))}
    compare(build(nodes, inputs, [*names, "fmod"]), tmp_path, {"a": a, "b": b})


def test_variadic_and_float_only(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Sum", ["a", "b", "c"], ["sum"]),
        helper.make_node("Mean", ["a", "b", "c"], ["mean"]),
        helper.make_node("Max", ["a", "b", "c"], ["max"]),
        helper.make_node("Min", ["a"], ["min"]),
        helper.make_node("PRelu", ["a", "b"], ["prelu"]),
        helper.make_node("Pow", ["p", "b"], ["pow"]),
        helper.make_node("Pow", ["p", "i"], ["powi"]),
        helper.make_node("Pow", ["i", "two"], ["ipow"]),
    ]
    inputs = {
        "a": ("float32", SHAPE),
        "b": ("float32", (5,)),
        "c": ("float32", ("n", 1)),
        "p": ("float32", SHAPE),
        "i": ("int64", (5,)),
    }
    feeds = {
        "a": _floats(-2, 2),
        "b": _floats(-2, 2)[0],
        "c": _floats(-2, 2)[:, :1],
        "p": _floats(0.1, 2),
        "i": np.array([0, 1, 2, 3, -2]),
    }
    names = ["sum", "mean", "max", "min", "prelu", "pow", "powi", "ipow"]
    model = build(nodes, inputs, names, {"two": np.array(2.0, "float32")})
    compare(model, tmp_path, feeds)


def test_logical_and_bitwise(tmp_path: Path) -> None:
    nodes = [helper.make_node(name, ["a", "b"], [name]) for name in ("And", "Or", "Xor")]
    nodes += [helper.make_node("Not", ["a"], ["Not"])]
    nodes += [
        helper.make_node(name, ["i", "j"], [name])
        for name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
    ]
    nodes += [helper.make_node("BitwiseNot", ["i"], ["BitwiseNot"])]
    nodes += [helper.make_node("BitShift", ["u", "v"], ["left"], direction="LEFT")]
    nodes += [helper.make_node("BitShift", ["u", "v"], ["right"], direction="RIGHT")]
    nodes += [helper.make_node("Where", ["a", "i", "j"], ["where"])]
    inputs = {
        "a": ("bool", ("n", 4)),
        "b": ("bool", (4,)),
        "i": ("int32", ("n", 4)),
        "j": ("int32", (1, 4)),
        "u": ("uint8", (4,)),
        "v": ("uint8", (4,)),
    }
    feeds = {
        "a": RNG.integers(0, 2, (3, 4)).astype(bool),
        "b": RNG.integers(0, 2, 4).astype(bool),
        "i": RNG.integers(-100, 100, (3, 4)).astype("int32"),
        "j": RNG.integers(-100, 100, (1, 4)).astype("int32"),
        "u": np.array([1, 3, 255, 128], "uint8"),
        "v": np.array([0, 1, 3, 7], "uint8"),
    }
    names = [name for node in nodes for name in node.output]
    compare(build(nodes, inputs, names), tmp_path, feeds)


def test_division_by_zero_does_not_trap(tmp_path: Path) -> None:
    import onnx
    from relax_vm import Runner

    from graphc.frontend import load

    model = build(
        [helper.make_node("Div", ["a", "b"], ["y"])],
        {"a": ("int64", (5,)), "b": ("int64", (5,))},
        ["y"],
    )
    onnx.save(model, tmp_path / "m.onnx")
    lowest = np.iinfo(np.int64).min
    a, b = np.array([6, 5, 7, lowest, lowest]), np.array([3, 0, -1, 1, -1])
    (y,) = Runner(load(tmp_path / "m.onnx"))({"a": a, "b": b})
    assert y[0] == 2
    assert list(y[2:4]) == [-7, lowest]  # y[4] overflows: any value, but no trap


CASTS = ["float32", "float64", "float16", "int64", "int32", "int8", "uint8", "bool"]


@pytest.mark.parametrize("source", ["float32", "int64", "bool", "float16"])
def test_cast(tmp_path: Path, source: str) -> None:
    x = RNG.uniform(0, 100, 12) if source != "bool" else RNG.integers(0, 2, 12)
    if source == "float32":
        x = x - 50
        x[:3] = 0, 0.25, -0.25
    wanted = [kind for kind in CASTS if not (kind == "uint8" and source == "float32")]
    nodes = [
        helper.make_node("Cast", ["x"], [kind], to=helper.np_dtype_to_tensor_dtype(np.dtype(kind)))
        for kind in wanted
    ]
    compare(build(nodes, {"x": (source, ("n",))}, wanted), tmp_path, {"x": x.astype(source)})


@pytest.mark.parametrize("opset", [6 + 1, 13])
def test_clip(tmp_path: Path, opset: int) -> None:
    x = _floats(-3, 3)
    if opset < 11:
        nodes = [
            helper.make_node("Clip", ["x"], ["both"], min=-1.0, max=1.5),
            helper.make_node("Clip", ["x"], ["low"], min=-1.0),
        ]
        model = build(nodes, {"x": ("float32", SHAPE)}, ["both", "low"], opset=opset)
    else:
        nodes = [
            helper.make_node("Clip", ["x", "low", "high"], ["both"]),
            helper.make_node("Clip", ["x", "", "high"], ["high_only"]),
            helper.make_node("Clip", ["x", "high", "low"], ["crossed"]),
            helper.make_node("Clip", ["x"], ["none"]),
        ]
        limits = {"low": np.array(-1, "float32"), "high": np.array(1.5, "float32")}
        names = ["both", "high_only", "crossed", "none"]
        model = build(nodes, {"x": ("float32", SHAPE)}, names, limits, opset)
    compare(model, tmp_path, {"x": x})
