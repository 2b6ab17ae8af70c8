"""The sampler in C against NumPy: filters by hand, draws by their frequencies, errors by name."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphc.errors import GraphcError, InputError
from graphc.llm.model import LanguageModel
from graphc.llm.sampling import SamplingParams

NOTHING = np.empty(0, "int32")


@pytest.fixture(scope="module")
def model(paged_artifact: Path) -> LanguageModel:
    return LanguageModel.open(paged_artifact)


def logits(count: int, seed: int = 0) -> np.ndarray:
    return (3 * np.random.default_rng(seed).standard_normal(count)).astype("float32")


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x.astype("float64") - np.max(x))
    return powers / powers.sum()


def kept(x: np.ndarray, params: SamplingParams) -> np.ndarray:
    """The probabilities that are left after the filters, in the documented order."""
    p = softmax(x / np.float32(params.temperature))

    def only(order: np.ndarray, count: int) -> np.ndarray:
        left = np.zeros_like(p)
        left[order[:count]] = p[order[:count]]
        return left / left.sum()

    def until(order: np.ndarray, mass: float) -> int:
        return int(np.searchsorted(np.cumsum(p[order]), mass) + 1)

    if params.top_k:
        p = only(np.argsort(-p, kind="stable"), params.top_k)
    if params.top_p < 1:
        order = np.argsort(-p, kind="stable")
        p = only(order, until(order, params.top_p))
    if params.min_p:
        p = only(np.argsort(-p, kind="stable"), int((p >= params.min_p * p.max()).sum()))
    if params.typical_p < 1:
        with np.errstate(divide="ignore", invalid="ignore"):
            surprise = -np.log(p)
            entropy = np.nansum(p * surprise)
        order = np.argsort(abs(surprise - entropy), kind="stable")
        p = only(order, until(order, params.typical_p))
    return p


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 33, 1000])
def test_the_largest_logit(model: LanguageModel, count: int) -> None:
    x = logits(count, count)
    token, logprob = model.sample(x, SamplingParams(temperature=0), NOTHING, 0)
    assert token == np.argmax(x)
    assert logprob == pytest.approx(np.log(softmax(x)[token]), abs=2e-6)
    x[:] = 1
    assert model.sample(x, SamplingParams(temperature=0), NOTHING, 0).token == 0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.4},
        {"top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"typical_p": 0.7},
        {"temperature": 1.7, "top_k": 9, "top_p": 0.9, "min_p": 0.05, "typical_p": 0.95},
        {"top_k": 1},
        {"top_p": 1e-6},
        {"top_k": 1000},
    ],
    ids=str,
)
def test_draws_have_the_right_frequencies(model: LanguageModel, options: dict[str, Any]) -> None:
    x, draws = logits(40, 3), 4000
    expected = kept(x, SamplingParams(**options))
    params = SamplingParams(seed=1, **options)
    history = np.zeros(0, "int32")
    found = np.zeros(40)
    for counter in range(draws):
        token, logprob = model.sample(x, params, history, counter)
        found[token] += 1
        if counter == 0:
            assert logprob == pytest.approx(np.log(softmax(x)[token]), abs=3e-6)
    assert not found[expected == 0].any()
    spread = np.sqrt(expected * (1 - expected) / draws)
    assert (abs(found / draws - expected) <= 5 * spread + 1e-9).all()


def test_a_draw_depends_on_seed_and_counter_only(model: LanguageModel) -> None:
    x = logits(50)
    drawn = {
        (seed, counter): model.sample(x, SamplingParams(seed=seed), NOTHING, counter).token
        for seed in (-1, 0, 1, 2**62)
        for counter in range(50)
    }
    for (seed, counter), token in reversed(drawn.items()):
        assert model.sample(x, SamplingParams(seed=seed), NOTHING, counter).token == token
    rows = [[drawn[seed, counter] for counter in range(50)] for seed in (-1, 0, 1, 2**62)]
    assert all(a != b for i, a in enumerate(rows) for b in rows[:i])


def test_penalties_and_bias(model: LanguageModel) -> None:
    x = np.array([2.0, 1.9, -1.0, -1.1, 0.5], "float32")
    history = np.array([0, 0, 3, 1], "int32")  # the answer is its last `counter` tokens

    def best(counter: int, values: np.ndarray = x, **options: Any) -> int:
        params = SamplingParams(temperature=0, **options)
        return model.sample(values, params, history, counter).token

    assert best(0) == 0
    assert best(0, repetition_penalty=5.0) == 4
    assert best(0, np.array([-2, -2, -1.5, -1, -4], "float32"), repetition_penalty=2.0) == 2
    assert best(1, presence_penalty=0.5) == 0 and best(4, presence_penalty=0.5) == 0
    assert best(4, frequency_penalty=0.2) == 1  # token 0 occurs twice: 1.6, token 1 once: 1.7
    assert best(1, frequency_penalty=0.2) == 0  # only token 1 is of the answer
    assert best(0, logit_bias={3: 4.0}) == 3
    assert best(0, logit_bias={0: -1e4, 1: -1e4}) == 4
    token, logprob = model.sample(x, SamplingParams(temperature=0, logit_bias={3: 4.0}), history, 0)
    assert logprob == pytest.approx(np.log(softmax(x)[token]), abs=2e-6)  # of the plain logits


def test_bad_logits_and_tokens(model: LanguageModel) -> None:
    params = SamplingParams()
    for value, message in ((np.nan, "token 17 is NaN"), (np.inf, "token 17 is infinite")):
        x = logits(40)
        x[17] = value
        for greedy in (params, SamplingParams(temperature=0)):
            with pytest.raises(GraphcError, match=message):
                model.sample(x, greedy, NOTHING, 0)
    with pytest.raises(GraphcError, match="every logit is -infinity"):
        model.sample(np.full(9, -np.inf, "float32"), params, NOTHING, 0)
    hidden = np.full(30, -np.inf, "float32")
    hidden[7] = -3e38
    for options in ({}, {"top_k": 3}, {"top_p": 0.5}, {"typical_p": 0.5}, {"temperature": 1e-30}):
        assert model.sample(hidden, SamplingParams(**options), NOTHING, 5).token == 7
    penalised = SamplingParams(repetition_penalty=1.1)
    with pytest.raises(InputError, match="token 1 of the history is 40, expected 0 to 39"):
        model.sample(logits(40), penalised, np.array([0, 40], "int32"), 0)
    with pytest.raises(InputError, match="logit bias is given for token 40"):
        model.sample(logits(40), SamplingParams(logit_bias={40: 1.0}), NOTHING, 0)


def test_c_checks_what_python_would_refuse(model: LanguageModel) -> None:
    params = SamplingParams()
    for name, value in {"top_p": 0.0, "min_p": 2.0, "temperature": -1.0, "top_k": -1}.items():
        broken = dataclasses.replace(params)
        object.__setattr__(broken, name, value)
        with pytest.raises(InputError, match=f"gc_sampling.{name}"):
            model.sample(logits(5), broken, NOTHING, 0)
