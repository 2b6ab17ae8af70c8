"""Options that mean nothing are refused with the value and what is expected."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from graphc.errors import InputError
from graphc.llm.sampling import SamplingParams


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": "hot"},
        {"top_k": 1.5},
        {"top_k": True},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": 2},
        {"typical_p": 0},
        {"repetition_penalty": 0},
        {"frequency_penalty": float("inf")},
        {"logit_bias": {-1: 1.0}},
        {"logit_bias": {3: "x"}},
        {"seed": 1 << 63},
        {"stop": [""]},
        {"stop": ["x"] * 65},
        {"stop_token_ids": ["x"]},
        {"max_tokens": -1},
        {"logprobs": 65},
    ],
)
def test_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(options))}.*expected"):
        SamplingParams(**options)


def test_frozen_and_plain() -> None:
    params = SamplingParams(stop="###", logit_bias={1: 2.0}, temperature=0)
    assert params.stop == ("###",) and params.greedy
    with pytest.raises(FrozenInstanceError):
        params.temperature = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        params.logit_bias[2] = 1.0  # type: ignore[index]
    assert params.but(top_k=5).but(temperature=1.0) == SamplingParams(
        stop="###", logit_bias={1: 2.0}, top_k=5
    )
