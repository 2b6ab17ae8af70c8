"""8-bit operators against ONNX Runtime: the same integers, everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import quantized_cases
from contrib_models import Case, compare

MAKERS = [
    (quantized_cases.integer_to_float, 3, 2e-5),
    (quantized_cases.dynamic, 3, 2e-5),
    (quantized_cases.gemm, 3, 2e-5),
    (quantized_cases.attention, 1, 1e-4),
    (quantized_cases.pointwise, 9, 2e-5),
    (quantized_cases.linear, 4, 2e-5),
]


@pytest.mark.parametrize(("make", "count", "tolerance"), MAKERS)
def test_quantized(
    tmp_path: Path, make: Callable[[np.random.Generator], Case], count: int, tolerance: float
) -> None:
    rng = np.random.default_rng(3)
    compare([make(rng) for _ in range(count)], tmp_path, tolerance)
