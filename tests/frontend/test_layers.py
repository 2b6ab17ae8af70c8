"""Matrix products, softmax, normalisation, convolution, pooling and resizing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from relax_vm import build, compare

RNG = np.random.default_rng(11)


def _normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.normal(size=shape).astype(dtype)


def test_matmul_and_gemm(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["a", "w"], ["y0"]),
        helper.make_node("MatMul", ["a", "v"], ["y1"]),
        helper.make_node("MatMul", ["v3", "a"], ["y2"]),
        helper.make_node("MatMul", ["b", "a"], ["y3"]),
        helper.make_node("Gemm", ["m", "w"], ["y4"]),
        helper.make_node("Gemm", ["m", "wt", "c"], ["y5"], transB=1, alpha=0.5, beta=2.0),
        helper.make_node("Gemm", ["mt", "w", "c"], ["y6"], transA=1),
        helper.make_node("Einsum", ["a", "w"], ["y7"], equation="bij,jk->bki"),
        helper.make_node("Einsum", ["a", "a"], ["y8"], equation="bij,bkj->bik"),
        helper.make_node("Einsum", ["m"], ["y9"], equation="ij->"),
    ]
    inputs = {
        "a": ("float32", ("n", 3, 4)),
        "b": ("float32", (2, 1, 5, 3)),
        "m": ("float32", ("r", 4)),
        "mt": ("float32", (4, "r")),
    }
    constants = {"w": _normal(4, 6), "v": _normal(4), "v3": _normal(3), "wt": _normal(6, 4),
                 "c": _normal(6)}  # fmt: skip
    feeds = {"a": _normal(2, 3, 4), "b": _normal(2, 1, 5, 3), "m": _normal(7, 4),
             "mt": _normal(4, 7)}  # fmt: skip
    names = [f"y{number}" for number in range(10)]
    compare(build(nodes, inputs, names, constants), tmp_path, feeds)


@pytest.mark.parametrize("opset", [11, 13])
def test_softmax(tmp_path: Path, opset: int) -> None:
    nodes = [
        helper.make_node(name, ["x"], [f"{name}{axis}"], axis=axis)
        for name in ("Softmax", "LogSoftmax")
        for axis in (0, 1, 2)
    ]
    nodes.append(helper.make_node("Softmax", ["x"], ["default"]))
    names = [node.output[0] for node in nodes]
    model = build(nodes, {"x": ("float32", ("n", 3, "m"))}, names, opset=opset)
    compare(model, tmp_path, {"x": _normal(2, 3, 4)})


def test_normalization(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("LayerNormalization", ["x", "g", "b"], ["y0"], epsilon=1e-3),
        helper.make_node("LayerNormalization", ["x", "g"], ["y1", "mean", "inverse"]),
        helper.make_node("LayerNormalization", ["x", "g2", "b2"], ["y2"], axis=1),
        helper.make_node("BatchNormalization", ["x", "s", "t", "mu", "var"], ["y3"]),
        helper.make_node("InstanceNormalization", ["x", "s", "t"], ["y4"]),
        helper.make_node("LpNormalization", ["x"], ["y5"], p=1, axis=1),
        helper.make_node("LpNormalization", ["x"], ["y6"]),
    ]
    constants = {"g": _normal(6), "b": _normal(6), "g2": _normal(3, 6), "b2": _normal(3, 6),
                 "s": _normal(3), "t": _normal(3), "mu": _normal(3),
                 "var": np.abs(_normal(3))}  # fmt: skip
    names = ["y0", "y1", "mean", "inverse", "y2", "y3", "y4", "y5", "y6"]
    model = build(nodes, {"x": ("float32", ("n", 3, 6))}, names, constants)
    compare(model, tmp_path, {"x": _normal(2, 3, 6)}, tolerance=3e-5)


def test_half_precision_is_normalised_in_float32(tmp_path: Path) -> None:
    nodes = [helper.make_node("LayerNormalization", ["x", "g", "b"], ["y"])]
    constants = {"g": _normal(64, dtype="float16"), "b": _normal(64, dtype="float16")}
    x = (_normal(3, 64) * 50 + 1000).astype("float16")
    compare(build(nodes, {"x": ("float16", ("n", 64))}, ["y"], constants), tmp_path, {"x": x})


CONVOLUTIONS: list[dict[str, Any]] = [
    {"pads": [1, 1, 1, 1]},
    {"strides": [2, 1], "pads": [0, 1, 2, 1]},
    {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
    {"strides": [2, 2], "auto_pad": "SAME_LOWER"},
]


def test_convolution(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], [f"y{number}"], **attributes)
        for number, attributes in enumerate(CONVOLUTIONS)
    ]
    nodes += [
        helper.make_node("Conv", ["x", "wg"], ["grouped"], group=2),
        helper.make_node("Conv", ["x1", "w1", "b1"], ["one"], pads=[1, 1]),
        helper.make_node("ConvTranspose", ["x", "wt", "bt"], ["t0"], strides=[2, 2],
                         pads=[1, 1, 1, 1]),
        helper.make_node("ConvTranspose", ["x", "wt"], ["t1"], strides=[2, 2],
                         output_padding=[1, 1]),
        helper.make_node("ConvTranspose", ["x1", "wt1"], ["t2"], strides=[3]),
        helper.make_node("ConvTranspose", ["x", "wt"], ["t3"], strides=[2, 2],
                         auto_pad="SAME_UPPER"),
    ]  # fmt: skip
    inputs = {"x": ("float32", ("n", 4, 9, 8)), "x1": ("float32", ("n", 4, "m"))}
    constants = {
        "w": _normal(6, 4, 3, 3), "b": _normal(6), "wg": _normal(6, 2, 2, 3),
        "w1": _normal(5, 4, 3), "b1": _normal(5), "wt": _normal(4, 3, 4, 4), "bt": _normal(3),
        "wt1": _normal(4, 2, 3),
    }  # fmt: skip
    names = ["y0", "y1", "y2", "y3", "grouped", "one", "t0", "t1", "t2", "t3"]
    feeds = {"x": _normal(2, 4, 9, 8), "x1": _normal(2, 4, 7)}
    compare(build(nodes, inputs, names, constants), tmp_path, feeds, tolerance=3e-5)


def test_pooling(tmp_path: Path) -> None:
    kernel = {"kernel_shape": [3, 2]}
    nodes = [
        helper.make_node("MaxPool", ["x"], ["m0"], **kernel),
        helper.make_node("MaxPool", ["x"], ["m1"], **kernel, strides=[2, 2], pads=[1, 0, 1, 1]),
        helper.make_node("MaxPool", ["x"], ["m2"], **kernel, strides=[2, 2], ceil_mode=1),
        helper.make_node("MaxPool", ["x"], ["m3"], **kernel, dilations=[2, 2]),
        helper.make_node("MaxPool", ["x"], ["m4"], **kernel, strides=[2, 2],
                         auto_pad="SAME_UPPER"),
        helper.make_node("AveragePool", ["x"], ["a0"], **kernel, pads=[1, 0, 1, 1]),
        helper.make_node("AveragePool", ["x"], ["a1"], **kernel, pads=[1, 0, 1, 1],
                         count_include_pad=1),
        helper.make_node("AveragePool", ["x"], ["a2"], **kernel, strides=[2, 2], ceil_mode=1),
        helper.make_node("AveragePool", ["x"], ["a3"], **kernel, strides=[2, 2],
                         auto_pad="SAME_LOWER"),
        helper.make_node("LpPool", ["x"], ["l0"], **kernel),
        helper.make_node("LpPool", ["x"], ["l1"], **kernel, p=1),
        helper.make_node("GlobalAveragePool", ["x"], ["g0"]),
        helper.make_node("GlobalMaxPool", ["x"], ["g1"]),
        helper.make_node("GlobalLpPool", ["x"], ["g2"]),
    ]  # fmt: skip
    names = [node.output[0] for node in nodes]
    model = build(nodes, {"x": ("float32", ("n", 3, 8, 9))}, names)
    compare(model, tmp_path, {"x": _normal(2, 3, 8, 9)})


RESIZES = [
    (mode, coordinates, extra)
    for mode in ("nearest", "linear", "cubic")
    for coordinates, extra in (
        ("half_pixel", {}),
        ("pytorch_half_pixel", {}),
        ("align_corners", {}),
        ("asymmetric", {"nearest_mode": "floor"} if mode == "nearest" else {}),
        ("half_pixel_symmetric", {"nearest_mode": "ceil"} if mode == "nearest" else {}),
    )
]


@pytest.mark.parametrize("by", ["sizes", "scales"])
def test_resize(tmp_path: Path, by: str) -> None:
    nodes = []
    for number, (mode, coordinates, extra) in enumerate(RESIZES):
        target = ["up", "down"][number % 2]
        inputs = ["x", "", "", target] if by == "sizes" else ["x", "", target]
        nodes.append(
            helper.make_node(
                "Resize", inputs, [f"y{number}"], mode=mode,
                coordinate_transformation_mode=coordinates, **extra,
            )
        )  # fmt: skip
    if by == "sizes":
        constants = {"up": np.array([2, 3, 11, 13]), "down": np.array([2, 3, 4, 3])}
        nodes.append(
            helper.make_node("Resize", ["x", "", "", "up"], ["yx"], mode="cubic",
                             exclude_outside=1, cubic_coeff_a=-0.5)
        )  # fmt: skip
    else:
        constants = {"up": np.array([1, 1, 2.3, 1.9], "float32"),
                     "down": np.array([1, 1, 0.6, 0.45], "float32")}  # fmt: skip
        nodes.append(
            helper.make_node("Resize", ["x", "roi", "up"], ["yx"], mode="linear",
                             coordinate_transformation_mode="tf_crop_and_resize",
                             extrapolation_value=7.0)
        )  # fmt: skip
        constants["roi"] = np.array([0, 0, 0.2, 0.1, 1, 1, 0.9, 1.3], "float32")
    names = [node.output[0] for node in nodes]
    model = build(nodes, {"x": ("float32", (2, 3, 6, 7))}, names, constants)
    compare(model, tmp_path, {"x": _normal(2, 3, 6, 7)}, tolerance=5e-5)


def test_resize_with_symbolic_sizes(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear"),
        helper.make_node("Shape", ["z"], ["hw"], start=2),
        helper.make_node("Shape", ["x"], ["nc"], end=2),
        helper.make_node("Concat", ["nc", "hw"], ["sizes"], axis=0),
        helper.make_node("Resize", ["x", "", "", "sizes"], ["w"], mode="nearest"),
    ]
    inputs = {"x": ("float32", ("n", 3, "h", "w")), "z": ("float32", ("n", 3, "h2", "w2"))}
    constants = {"scales": np.array([1, 1, 2, 2], "float32")}
    feeds = {"x": _normal(1, 3, 4, 5), "z": _normal(1, 3, 9, 3)}
    compare(build(nodes, inputs, ["y", "w"], constants), tmp_path, feeds)


def test_generators(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Trilu", ["x"], ["a"]),
        helper.make_node("Trilu", ["x", "k"], ["b"], upper=0),
        helper.make_node("EyeLike", ["x"], ["c"]),
        helper.make_node("EyeLike", ["x"], ["d"], k=-1, dtype=7),
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("ConstantOfShape", ["s"], ["e"]),
        helper.make_node("Range", ["zero", "five", "two"], ["f"]),
        helper.make_node("Dropout", ["x"], ["g", "kept"]),
        helper.make_node("Trilu", ["kept"], ["h"]),
    ]
    constants = {"k": np.array(1), "zero": np.array(0.0, "float32"),
                 "five": np.array(5.0, "float32"), "two": np.array(2.0, "float32")}  # fmt: skip
    model = build(nodes, {"x": ("float32", ("n", "m"))}, list("abcdefgh"), constants)
    compare(model, tmp_path, {"x": _normal(4, 5)})
