"""Some of the random graphs that differential.py compares with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import differential
import pytest
import random_graphs


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_random_graphs_agree_with_onnx_runtime(first: int, tmp_path: Path) -> None:
    outcomes = [differential.check(seed, tmp_path) for seed in range(first, first + 10)]
    assert not [outcome for outcome in outcomes if outcome.startswith("wrong")]
    assert outcomes.count("same") >= 7, outcomes


def test_a_graph_is_the_same_for_each_seed() -> None:
    first, second = (random_graphs.draw(7) for _ in range(2))
    assert first.model == second.model
    assert first.model != random_graphs.draw(8).model
