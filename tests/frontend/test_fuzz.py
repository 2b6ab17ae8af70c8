"""A few hundred damaged models; thousands by hand (see fuzz_models)."""

from __future__ import annotations

import fuzz_models
import pytest


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_damaged_models_are_refused(first: int) -> None:
    results = fuzz_models.run(100, first)
    assert results["ModelError"] > 30 and results["imported"] > 0, results
