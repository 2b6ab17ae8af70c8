"""Mixtures of experts against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import expert_cases
import numpy as np
import pytest
from contrib_models import Case, compare


@pytest.mark.parametrize("make", [expert_cases.dense, expert_cases.quantized])
def test_experts(tmp_path: Path, make: Callable[[np.random.Generator], Case]) -> None:
    rng = np.random.default_rng(4)
    model = compare([make(rng) for _ in range(2)], tmp_path, 1e-4)
    if make is expert_cases.quantized:
        assert sum(data.dtype == np.uint8 for data in model.params.values()) >= 4
