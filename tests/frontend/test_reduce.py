"""Reductions, ArgMax, ArgMin and CumSum against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from relax_vm import build, compare

RNG = np.random.default_rng(3)
OPERATORS = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")


@pytest.mark.parametrize("opset", [11, 18])
def test_reductions(tmp_path: Path, opset: int) -> None:
    nodes, names, constants = [], [], {}
    for number, name in enumerate(OPERATORS):
        axes = [(-1,), (0, 2), (1,)][number % 3]
        keep = number % 2
        output = f"y{number}"
        if opset >= 18:
            constants[f"axes{number}"] = np.array(axes)
            inputs = ["x", f"axes{number}"]
            nodes.append(helper.make_node(f"Reduce{name}", inputs, [output], keepdims=keep))
        else:
            nodes.append(
                helper.make_node(f"Reduce{name}", ["x"], [output], axes=axes, keepdims=keep)
            )
        nodes.append(helper.make_node(f"Reduce{name}", ["x"], [f"{output}_all"]))
        names += [output, f"{output}_all"]
    if opset >= 18:
        nodes.append(helper.make_node("ReduceSum", ["x"], ["unchanged"], noop_with_empty_axes=1))
        names.append("unchanged")
    model = build(nodes, {"x": ("float32", ("n", 4, "m"))}, names, constants, opset)
    x = RNG.uniform(0.5, 1.5, (3, 4, 5)).astype("float32")
    compare(model, tmp_path, {"x": x}, tolerance=3e-5)


def test_integer_reductions(tmp_path: Path) -> None:
    names = ["Sum", "Max", "Min", "Prod"]
    nodes = [helper.make_node(f"Reduce{name}", ["x", "axes"], [name]) for name in names]
    model = build(nodes, {"x": ("int32", ("n", 4))}, names, {"axes": np.array([1])})
    compare(model, tmp_path, {"x": RNG.integers(-9, 9, (3, 4)).astype("int32")})


def test_arg_and_cumsum(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("ArgMax", ["x"], ["a"], axis=1),
        helper.make_node("ArgMin", ["x"], ["b"], axis=-1, keepdims=0),
        helper.make_node("ArgMax", ["x"], ["c"], axis=1, select_last_index=1),
        helper.make_node("ArgMin", ["x"], ["d"], axis=1, select_last_index=1, keepdims=0),
        helper.make_node("CumSum", ["x", "axis"], ["e"]),
        helper.make_node("CumSum", ["x", "axis"], ["f"], reverse=1),
        helper.make_node("CumSum", ["x", "axis"], ["g"], exclusive=1),
        helper.make_node("CumSum", ["x", "axis"], ["h"], exclusive=1, reverse=1),
    ]
    model = build(nodes, {"x": ("float32", ("n", 6))}, list("abcdefgh"), {"axis": np.array(1)})
    x = RNG.integers(0, 3, (4, 6)).astype("float32")  # many ties
    compare(model, tmp_path, {"x": x})
