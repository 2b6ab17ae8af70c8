"""Operators whose results have shapes that depend on values, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import compiled_runner
import numpy as np
import pytest
from relax_vm import single

RNG = np.random.default_rng()
Shapes = Mapping[str, tuple[str, Sequence[int | str | None]]]
INT = ("int64", ("k",))


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def ints(*values: int) -> np.ndarray:
    return np.array(values, "int64")


X: Shapes = {"x": ("float32", ("n", 6))}
CASES: list[tuple[str, str, Shapes, dict[str, Any], list[dict[str, np.ndarray]]]] = [
    ("reshape", "Reshape", {**X, "s": ("int64", (3,))}, {},
     [{"x": floats(4, 6), "s": ints(*s)} for s in ((2, 3, 4), (-1, 2, 3), (0, 6, -1), (1, 1, 24))]),
    ("slice", "Slice", {**X, "b": ("int64", (2,)), "e": ("int64", (2,))}, {},
     [{"x": floats(5, 6), "b": ints(*b), "e": ints(*e)}
      for b, e in (((0, 1), (3, 4)), ((-2, -5), (2**62, -1)), ((4, 3), (2, 9)))]),
    ("expand", "Expand", {**X, "s": ("int64", (3,))}, {},
     [{"x": floats(4, 6), "s": ints(*s)} for s in ((3, 4, 6), (2, 1, 1), (1, 4, 1))]),
    ("tile", "Tile", {**X, "s": ("int64", (2,))}, {},
     [{"x": floats(4, 6), "s": ints(*s)} for s in ((1, 2), (3, 1))]),
    ("range", "Range", dict.fromkeys("abc", ("int64", ())), {},
     [{"a": np.array(a), "b": np.array(b), "c": np.array(c)}
      for a, b, c in ((0, 5, 1), (3, -9, -4), (4, 4, 2), (0, 7, 3))]),
    ("float_range", "Range", dict.fromkeys("abc", ("float32", ())), {},
     [{"a": np.array(a, "float32"), "b": np.array(b, "float32"), "c": np.array(c, "float32")}
      for a, b, c in ((0, 2, 0.5), (1, -1.1, -0.3))]),
    ("top_k", "TopK", {**X, "k": ("int64", (1,))}, {},
     [{"x": floats(4, 6), "k": ints(k)} for k in (1, 3, 6)]),
    ("constant", "ConstantOfShape", {"s": ("int64", (2,))}, {},
     [{"s": ints(*s)} for s in ((2, 3), (1, 7))]),
    ("unique", "Unique", {"x": ("float32", ("n",))}, {},
     [{"x": RNG.integers(0, 9, n).astype("float32")} for n in (1, 7, 64, 65)]),
    ("unique_unsorted", "Unique", {"x": ("int64", ("n", 2))}, {"sorted": 0},
     [{"x": RNG.integers(0, 5, (n, 2))} for n in (1, 33)]),
    ("unique_rows", "Unique", {"x": ("float32", ("n", 2))}, {"axis": 0},
     [{"x": RNG.integers(0, 3, (n, 2)).astype("float32")} for n in (1, 8, 31)]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "inputs", "attributes", "feeds"),
    [pytest.param(*case[1:], id=case[0]) for case in CASES],
)
def test_shapes_set_by_values(
    kind: str, inputs: Shapes, attributes: dict[str, Any], feeds: Any, tmp_path: Path
) -> None:
    outputs = {"TopK": 2, "Unique": 4}.get(kind, 1)
    model = single(kind, inputs, outputs=outputs, opset=18, **attributes)
    compiled_runner.compare(model, tmp_path, *feeds)


@pytest.mark.parametrize("centred", [0, 1])
def test_suppression(centred: int, tmp_path: Path) -> None:
    inputs: Shapes = {
        "b": ("float32", (2, "n", 4)),
        "s": ("float32", (2, 3, "n")),
        "m": ("int64", (1,)),
        "i": ("float32", (1,)),
        "t": ("float32", (1,)),
    }
    model = single("NonMaxSuppression", inputs, opset=11, center_point_box=centred)
    feeds = [
        {
            "b": RNG.random((2, n, 4)).astype("float32"),
            "s": RNG.random((2, 3, n)).astype("float32"),
            "m": ints(most),
            "i": np.float32([0.3]),
            "t": np.float32([0.2]),
        }
        for n, most in ((1, 2), (30, 4), (31, 100))
    ]
    compiled_runner.compare(model, tmp_path, *feeds)
