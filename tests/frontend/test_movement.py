"""Operators that move elements, against ONNX Runtime, with symbolic dimensions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import helper
from relax_vm import build, compare

RNG = np.random.default_rng(5)
X = {"x": ("float32", ("n", 4, "m"))}
FEED = {"x": RNG.normal(size=(3, 4, 5)).astype("float32")}


def test_reshape_and_friends(tmp_path: Path) -> None:
    constants = {
        "copy": np.array([0, 2, 2, -1]),
        "flat": np.array([-1]),
        "axes": np.array([0, -1]),
        "one": np.array([0]),
    }
    nodes = [
        helper.make_node("Reshape", ["x", "copy"], ["a"]),
        helper.make_node("Reshape", ["x", "flat"], ["b"]),
        helper.make_node("Flatten", ["x"], ["c"]),
        helper.make_node("Flatten", ["x"], ["d"], axis=-1),
        helper.make_node("Unsqueeze", ["x", "axes"], ["e"]),
        helper.make_node("Squeeze", ["e", "one"], ["f"]),
        helper.make_node("Squeeze", ["e"], ["g"]),
        helper.make_node("Transpose", ["x"], ["h"]),
        helper.make_node("Transpose", ["x"], ["i"], perm=[1, 0, 2]),
        helper.make_node("Size", ["x"], ["j"]),
        helper.make_node("Shape", ["x"], ["k"], start=-2),
    ]
    compare(build(nodes, X, list("abcdefghijk"), constants), tmp_path, FEED)


def test_computed_shapes_stay_symbolic(tmp_path: Path) -> None:
    """torch's spelling of expand: Where(Equal(shape, -1), ones, shape)."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Gather", ["s", "two"], ["m"]),
        helper.make_node("Mul", ["n", "m"], ["nm"]),
        helper.make_node("Unsqueeze", ["nm", "axis"], ["nm1"]),
        helper.make_node("Concat", ["nm1", "minus"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["a"]),
        helper.make_node("Unsqueeze", ["n", "axis"], ["n1"]),
        helper.make_node("Concat", ["n1", "minus", "minus"], ["wanted"], axis=0),
        helper.make_node("Shape", ["wanted"], ["three"]),
        helper.make_node("ConstantOfShape", ["three"], ["ones"],
                         value=helper.make_tensor("v", 7, [1], [1])),
        helper.make_node("Mul", ["ones", "minus_one"], ["minuses"]),
        helper.make_node("Equal", ["wanted", "minuses"], ["is_minus"]),
        helper.make_node("Where", ["is_minus", "ones", "wanted"], ["full"]),
        helper.make_node("Expand", ["token", "full"], ["b"]),
    ]  # fmt: skip
    constants = {
        "zero": np.array(0), "two": np.array(2), "axis": np.array([0]),
        "minus": np.array([-1]), "minus_one": np.array(-1),
        "token": RNG.normal(size=(1, 1, 7)).astype("float32"),
    }  # fmt: skip
    model = compare(build(nodes, X, ["a", "b"], constants), tmp_path, FEED)
    outputs = model.signatures["main"].outputs
    assert [str(extent) for extent in outputs[0].shape] == ["n * m", "4"]
    assert [str(extent) for extent in outputs[1].shape] == ["n", "1", "7"]
    assert not model.signatures["main"].constraints


def test_float_detours_of_sizes(tmp_path: Path) -> None:
    """Cast -> Div -> Floor -> Cast, as older exporters compute sizes."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], start=2),
        helper.make_node("Cast", ["s"], ["sf"], to=1),
        helper.make_node("Div", ["sf", "two"], ["half"]),
        helper.make_node("Floor", ["half"], ["floor"]),
        helper.make_node("Cast", ["floor"], ["k"], to=7),
        helper.make_node("Slice", ["x", "zero", "k", "axis"], ["a"]),
        helper.make_node("Ceil", ["half"], ["ceil"]),
        helper.make_node("Cast", ["ceil"], ["k2"], to=7),
        helper.make_node("Slice", ["x", "k2", "end", "axis"], ["b"]),
    ]
    constants = {"two": np.array(2, "float32"), "zero": np.array([0]), "axis": np.array([2]),
                 "end": np.array([2**63 - 1])}  # fmt: skip
    feeds = [{"x": RNG.normal(size=(2, 4, m)).astype("float32")} for m in (4, 5, 9)]
    compare(build(nodes, X, ["a", "b"], constants), tmp_path, *feeds)


def test_expand_tile_concat_split(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Expand", ["x", "to"], ["a"]),
        helper.make_node("Tile", ["x", "times"], ["b"]),
        helper.make_node("Concat", ["x", "x"], ["c"], axis=-1),
        helper.make_node("Split", ["x"], ["d", "e"], axis=1, num_outputs=2),
        helper.make_node("Split", ["x", "parts"], ["f", "g"], axis=1),
        helper.make_node("DepthToSpace", ["q"], ["h"], blocksize=2),
        helper.make_node("DepthToSpace", ["q"], ["i"], blocksize=2, mode="CRD"),
        helper.make_node("SpaceToDepth", ["q"], ["j"], blocksize=2),
    ]
    constants = {"to": np.array([2, 1, 1, 1]), "times": np.array([2, 1, 3]),
                 "parts": np.array([1, 3])}  # fmt: skip
    inputs = {**X, "q": ("float32", ("n", 8, 4, 6))}
    feed = {**FEED, "q": RNG.normal(size=(3, 8, 4, 6)).astype("float32")}
    compare(build(nodes, inputs, list("abcdefghij"), constants), tmp_path, feed)


def test_split_of_a_shape(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Split", ["s"], ["n", "four", "m"], num_outputs=3),
        helper.make_node("Concat", ["m", "four", "n"], ["t"], axis=0),
        helper.make_node("Reshape", ["x", "t"], ["y"]),
    ]
    compare(build(nodes, X, ["y", "t"]), tmp_path, FEED)


SLICES = [
    ([0], [2], [1], [1]),
    ([1], [2**63 - 1], [2], [1]),
    ([-3], [-1], [2], [1]),
    ([-1], [-(2**63)], [1], [-1]),
    ([3], [-100], [1], [-2]),
    ([0, 1], [100, 4], [2, 1], [2, 2]),
    ([5], [2], [1], [1]),
    ([-1], [-6], [1], [-1]),
]


def test_slices(tmp_path: Path) -> None:
    nodes, constants = [], {}
    for number, (starts, ends, axes, steps) in enumerate(SLICES):
        names = []
        for kind, values in zip("seat", (starts, ends, axes, steps), strict=True):
            constants[f"{kind}{number}"] = np.array(values)
            names.append(f"{kind}{number}")
        nodes.append(helper.make_node("Slice", ["x", *names], [f"y{number}"]))
    names = [f"y{number}" for number in range(len(SLICES))]
    compare(build(nodes, X, names, constants), tmp_path, FEED)


def test_slice_with_attributes(tmp_path: Path) -> None:
    nodes = [helper.make_node("Slice", ["x"], ["y"], starts=[1, 0], ends=[3, -1], axes=[1, 2])]
    compare(build(nodes, X, ["y"], opset=9), tmp_path, FEED)


def test_truncation_stays_exact(tmp_path: Path) -> None:
    """x[:, :, :4] takes what there is: a minimum, and no bound on m."""
    nodes = [helper.make_node("Slice", ["x", "s", "e", "a"], ["y"])]
    constants = {"s": np.array([0]), "e": np.array([4]), "a": np.array([2])}
    feeds = [{"x": RNG.normal(size=(1, 4, m)).astype("float32")} for m in (2, 4, 7)]
    model = compare(build(nodes, X, ["y"], constants), tmp_path, *feeds)
    assert all(dim.upper is None for dim in model.signatures["main"].dims)


def test_pad(tmp_path: Path) -> None:
    constants = {
        "p": np.array([0, 1, 2, 0, 0, 1]),
        "cut": np.array([0, -1, 1, 0, 0, -2]),
        "value": np.array(2.5, "float32"),
        "two": np.array([2, 1]),
        "axis": np.array([2]),
    }
    nodes = [
        helper.make_node("Pad", ["x", "p"], ["a"]),
        helper.make_node("Pad", ["x", "p", "value"], ["b"]),
        helper.make_node("Pad", ["x", "p"], ["c"], mode="reflect"),
        helper.make_node("Pad", ["x", "p"], ["d"], mode="edge"),
        helper.make_node("Pad", ["x", "p"], ["e"], mode="wrap"),
        helper.make_node("Pad", ["x", "cut"], ["f"]),
        helper.make_node("Pad", ["x", "two", "", "axis"], ["g"]),
    ]
    compare(build(nodes, X, list("abcdefg"), constants), tmp_path, FEED)
