"""Gathers: numbers, proofs of index ranges, checks at run time, bounds on dimensions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper
from relax_vm import Runner, build, compare

from graphc.errors import ModelError
from graphc.frontend import load

RNG = np.random.default_rng(9)
TABLE = RNG.normal(size=(10, 4)).astype("float32")
IDS = {"ids": ("int64", ("b", "s"))}


def _checks(model: object) -> int:
    return str(model.mod.script()).count("graphc.check_indices")  # type: ignore[attr-defined]


def test_gather_of_an_input_is_checked(tmp_path: Path) -> None:
    nodes = [helper.make_node("Gather", ["table", "ids"], ["y"], name="lookup")]
    ids = RNG.integers(-10, 10, (2, 3))
    model = compare(build(nodes, IDS, ["y"], {"table": TABLE}), tmp_path, {"ids": ids})
    assert _checks(model) == 1
    assert model.signatures["main"].inputs[0].value_range == (0, 9)
    with pytest.raises((ValueError, tvm.error.InternalError), match="lookup"):
        Runner(model)({"ids": np.array([[0, 10]])})


def test_range_follows_casts_and_reshapes(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["ids"], ["small"], to=onnx.TensorProto.INT32),
        helper.make_node("Reshape", ["small", "flat"], ["line"]),
        helper.make_node("Gather", ["table", "line"], ["y"]),
    ]
    constants = {"table": TABLE, "flat": np.array([-1])}
    model = compare(
        build(nodes, IDS, ["y"], constants), tmp_path, {"ids": RNG.integers(0, 10, (2, 3))}
    )
    assert model.signatures["main"].inputs[0].value_range == (0, 9)


def test_positions_bound_the_sequence(tmp_path: Path) -> None:
    """Positions 0 .. s - 1 in a table of 10 rows: no check, and at most 10 of them."""
    nodes = [
        helper.make_node("Shape", ["ids"], ["length"], start=1),
        helper.make_node("Squeeze", ["length"], ["s"]),
        helper.make_node("Range", ["zero", "s", "one"], ["positions"]),
        helper.make_node("Gather", ["table", "positions"], ["y"]),
    ]
    constants = {"table": TABLE, "zero": np.array(0), "one": np.array(1)}
    model = compare(
        build(nodes, IDS, ["y"], constants), tmp_path, {"ids": RNG.integers(0, 10, (2, 7))}
    )
    assert _checks(model) == 0
    uppers = {dim.name: dim.upper for dim in model.signatures["main"].dims}
    assert uppers == {"b": None, "s": 10}


def test_sliced_table_bounds_the_sequence(tmp_path: Path) -> None:
    """table[:s] added to a tensor of s rows: s is at most 10, and the slice is not clamped."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], end=1),
        helper.make_node("Slice", ["table", "zero", "s", "zero"], ["rows"]),
        helper.make_node("Add", ["x", "rows"], ["y"]),
    ]
    model = compare(
        build(
            nodes,
            {"x": ("float32", ("s", 4))},
            ["y"],
            {"table": TABLE, "zero": np.array([0])},
        ),
        tmp_path,
        {"x": RNG.normal(size=(6, 4)).astype("float32")},
    )
    signature = model.signatures["main"]
    assert [dim.upper for dim in signature.dims] == [10] and not signature.constraints
    assert "T.min" not in str(model.mod.script())


def test_constant_indices(tmp_path: Path) -> None:
    nodes = [helper.make_node("Gather", ["x", "i"], ["y"], axis=1, name="picks")]
    inputs = {"x": ("float32", ("n", 4))}
    x = RNG.normal(size=(3, 4)).astype("float32")
    model = compare(build(nodes, inputs, ["y"], {"i": np.array([[-1, 0], [3, -4]])}), tmp_path,
                    {"x": x})  # fmt: skip
    assert _checks(model) == 0
    onnx.save(build(nodes, inputs, ["y"], {"i": np.array([4])}), tmp_path / "bad.onnx")
    with pytest.raises(ModelError, match=r"picks.*out of range"):
        load(tmp_path / "bad.onnx")


def test_gather_elements_and_nd(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("GatherElements", ["x", "i"], ["a"], axis=1),
        helper.make_node("GatherND", ["x", "rows"], ["b"]),
        helper.make_node("GatherND", ["x", "cells"], ["c"]),
        helper.make_node("GatherND", ["z", "batched"], ["d"], batch_dims=1),
        helper.make_node("OneHot", ["i", "depth", "values"], ["e"]),
        helper.make_node("OneHot", ["i", "depth", "values"], ["f"], axis=0),
    ]
    inputs = {
        "x": ("float32", ("n", 4)),
        "i": ("int64", ("n", 2)),
        "rows": ("int64", ("k", 1)),
        "cells": ("int64", ("k", 2)),
        "z": ("float32", (2, 3, "m")),
        "batched": ("int64", (2, 1)),
    }
    feeds = {
        "x": RNG.normal(size=(5, 4)).astype("float32"),
        "i": RNG.integers(-4, 4, (5, 2)),
        "rows": RNG.integers(-5, 5, (3, 1)),
        "cells": np.array([[0, 3], [-1, -4], [4, 0]]),
        "z": RNG.normal(size=(2, 3, 4)).astype("float32"),
        "batched": np.array([[2], [-1]]),
    }
    constants = {"depth": np.array(4), "values": np.array([0.5, 2.0], "float32")}
    compare(build(nodes, inputs, list("abcdef"), constants), tmp_path, feeds)


def test_gather_nd_by_ranges_needs_no_check(tmp_path: Path) -> None:
    """The padding mask of torch exports: mask[arange(b), arange(s)] by GatherND."""
    nodes = [
        helper.make_node("Shape", ["mask"], ["b1"], end=1),
        helper.make_node("Shape", ["mask"], ["s1"], start=1),
        helper.make_node("Squeeze", ["b1"], ["b"]),
        helper.make_node("Squeeze", ["s1"], ["s"]),
        helper.make_node("Range", ["zero", "b", "one"], ["rows"]),
        helper.make_node("Range", ["zero", "s", "one"], ["columns"]),
        helper.make_node("Unsqueeze", ["rows", "last"], ["r"]),
        helper.make_node("Concat", ["b1", "s1"], ["bs"], axis=0),
        helper.make_node("Expand", ["r", "bs"], ["rr"]),
        helper.make_node("Expand", ["columns", "bs"], ["cc"]),
        helper.make_node("Unsqueeze", ["rr", "tail"], ["r3"]),
        helper.make_node("Unsqueeze", ["cc", "tail"], ["c3"]),
        helper.make_node("Concat", ["r3", "c3"], ["index"], axis=-1),
        helper.make_node("GatherND", ["mask", "index"], ["y"]),
    ]
    constants = {"zero": np.array(0), "one": np.array(1), "last": np.array([1]),
                 "tail": np.array([-1])}  # fmt: skip
    model = compare(
        build(nodes, {"mask": ("bool", ("b", "s"))}, ["y"], constants),
        tmp_path,
        {"mask": RNG.integers(0, 2, (3, 5)).astype(bool)},
    )
    assert _checks(model) == 0
