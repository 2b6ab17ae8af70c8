"""Operators that move elements, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from contrib_models import Case, compare, normal

RNG = np.random.default_rng(9)


def test_movement(tmp_path: Path) -> None:
    x, shape = normal(RNG, 3, 6, 5), ("n", 6, 5)
    cases = [
        Case("Trilu").feed(x, shape),
        Case("Trilu", {"upper": 0}).feed(x, shape).constant(np.array(-1)),
        Case("GatherND").constant(normal(RNG, 4, 5, 2)).feed(
            np.array([[0, 1], [3, 4], [-1, 2]], "int32"), ("n", 2)),
        Case("ExpandDims").feed(x, shape).constant(np.array(-2, "int32")),
        *(Case("UnfoldTensor", {"dim": dim, "size": size, "step": step}).feed(x, ("n", "a", "b"))
          for dim, size, step in ((1, 3, 1), (-1, 2, 2), (2, 5, 1))),
        *(Case("Pad", {"mode": mode}).feed(x, shape).constant(
            np.array([0, 2, 1, 0, 0, 3]))
          for mode in ("constant", "reflect", "edge")),
        Case("Range").constant(np.array(1, "int64")).constant(np.array(9, "int64")),
        Case("Range").constant(np.array(9, "int32")).constant(np.array(1, "int32")).constant(
            np.array(-3, "int32")),
    ]  # fmt: skip
    compare(cases, tmp_path)
