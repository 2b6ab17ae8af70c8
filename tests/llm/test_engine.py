"""The engine over a fake model: nobody's answer depends on who else runs, and no page is lost."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from fake_model import FakeModel
from hypothesis import given, settings
from hypothesis import strategies as st

from graphc.errors import CacheExhaustedError, ConfigError, InputError, NumericsError
from graphc.llm.engine import Engine
from graphc.llm.sampling import SamplingParams
from graphc.llm.sequence import FinishReason, Sequence

END = 7  # the stop token

Request = tuple[list[int], SamplingParams, int]  # prompt, params, the step at which it arrives


def finish(engine: Engine, *sequences: Sequence, most: int = 5000) -> None:
    for _ in range(most):
        if all(sequence.finished for sequence in sequences):
            return
        engine.step()
    raise AssertionError("a request does not end")


def alone(prompt: list[int], params: SamplingParams, **options: int) -> Sequence:
    engine = Engine(FakeModel(**options), stop_tokens=[END])
    sequence = engine.add(prompt, params)
    finish(engine, sequence)
    return sequence


prompts = st.lists(st.integers(0, 5), min_size=1, max_size=30)  # few tokens: prefixes are shared
params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 0.8]),
    seed=st.integers(0, 9),
    max_tokens=st.integers(0, 25),
    ignore_eos=st.booleans(),
)
requests = st.lists(st.tuples(prompts, params, st.integers(0, 12)), min_size=1, max_size=7)


@settings(max_examples=200, deadline=None)
@given(requests=requests, pages=st.integers(14, 40), budget=st.integers(1, 24), data=st.data())
def test_any_interleaving_gives_every_request_its_own_answer(
    requests: list[Request], pages: int, budget: int, data: st.DataObject
) -> None:
    model = FakeModel(pages=pages)
    engine = Engine(model, stop_tokens=[END], token_budget=budget, max_sequences=4)
    started: list[Sequence] = []
    aborted: set[int] = set()
    for step in range(5000):
        for prompt, params, arrival in requests:
            if arrival == step:
                started.append(engine.add(prompt, params))
        if step == 6 and started and data.draw(st.booleans()):
            engine.abort(started[0])
            aborted.add(started[0].number)
        engine.step()
        if len(started) == len(requests) and not engine.has_work:
            break
    assert all(sum(chunks) <= budget for chunks in model.steps)
    assert model.open_sequences == 0 and model.pages_free == model.pages_total
    order = sorted(requests, key=lambda request: request[2])
    for sequence, (prompt, params, _) in zip(started, order, strict=True):
        expected = alone(prompt, params, pages=pages)
        if sequence.number in aborted and sequence.finish_reason == FinishReason.ABORT:
            assert sequence.answer == expected.answer[: sequence.generated]
            continue
        assert sequence.finish_reason == expected.finish_reason
        assert sequence.answer == expected.answer
        assert [piece.token for piece in sequence.pieces] == sequence.answer


def test_preemption_happens_and_is_not_seen() -> None:
    model = FakeModel(pages=12)
    engine = Engine(model, token_budget=16)
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    sequences = [engine.add([first, 2, 3], params) for first in range(4)]
    finish(engine, *sequences)
    assert engine.scheduler.preemptions > 0
    for first, sequence in enumerate(sequences):
        assert sequence.answer == alone([first, 2, 3], params).answer
    assert model.pages_free == 12


def test_a_step_that_needs_more_pages_than_counted_goes_on_without_the_newest() -> None:
    class Boaster(FakeModel):
        @property
        def pages_free(self) -> int:
            return super().pages_free + 2

    engine = Engine(Boaster(pages=10, strict=False), token_budget=16)
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    sequences = [engine.add([first, 2, 3], params) for first in range(3)]
    finish(engine, *sequences)
    assert engine.scheduler.preemptions > 0
    for first, sequence in enumerate(sequences):
        assert sequence.answer == alone([first, 2, 3], params).answer


def test_answers_do_not_wait_for_a_long_prompt() -> None:
    engine = Engine(FakeModel(max_context=1000, pages=400), token_budget=10)
    answering = engine.add([1, 2], SamplingParams(max_tokens=50, ignore_eos=True))
    engine.step()
    long = engine.add([3] * 300, SamplingParams(max_tokens=1))
    before = answering.generated
    for _ in range(20):
        engine.step()
    assert answering.generated == before + 20 and long.cached == 20 * 9


def test_a_shared_prefix_is_computed_once() -> None:
    model = FakeModel()
    engine = Engine(model)
    prompt = list(range(1, 23))
    for _ in range(2):
        finish(engine, engine.add(prompt, SamplingParams(max_tokens=1, temperature=0)))
    assert [sum(chunks) for chunks in model.steps] == [22, 2]


def test_requests_are_started_in_order_of_arrival() -> None:
    engine = Engine(FakeModel(pages=8), token_budget=64)
    params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
    large = [engine.add([n] * 20, params) for n in range(2)]
    small = engine.add([5], params)
    order = []
    while engine.has_work:
        order += [s for s in engine.step() if s.generated == 1]
    assert order == [*large, small]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "empty"),
        ([1] * 300, "context holds 256"),
        ([1] * 200, "cache holds 160"),
        ([40], "0 to 39"),
        ([-1], "token -1"),
        ([0.5], "token ids"),
    ],
)
def test_a_prompt_that_can_never_run_is_refused(prompt: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Engine(FakeModel(pages=40)).add(prompt, SamplingParams())


def test_the_context_and_the_cache_end_an_answer() -> None:
    for options, length in (({"max_context": 20}, 20), ({"pages": 3}, 12)):
        sequence = alone([1, 2], SamplingParams(ignore_eos=True), **options)
        assert sequence.length == length and sequence.finish_reason == FinishReason.LENGTH


def test_pages_held_elsewhere_are_an_error_and_not_a_hang() -> None:
    model = FakeModel(pages=4)
    engine = Engine(model)
    held = model.create()
    sequence = engine.add([1] * 15, SamplingParams(max_tokens=1))
    model._tables[held] = [model._take([]) for _ in range(2)]
    finish(engine, sequence)
    assert isinstance(sequence.error, CacheExhaustedError)
    assert sequence.finish_reason == FinishReason.ERROR


def test_logits_that_are_not_numbers_end_one_request_only() -> None:
    model = FakeModel()
    model.poison = 39
    engine = Engine(model)
    bad = engine.add([1, 39], SamplingParams(max_tokens=3))
    good = engine.add([1, 2], SamplingParams(max_tokens=3, temperature=0))
    finish(engine, bad, good)
    assert isinstance(bad.error, NumericsError) and "not numbers" in str(bad.error)
    assert good.error is None and model.pages_free == model.pages_total


def test_a_seed_means_the_same_in_any_batch() -> None:
    params = SamplingParams(seed=5, max_tokens=12, ignore_eos=True)
    engine = Engine(FakeModel(), token_budget=32)
    several = [engine.add([1, 2, 3], params.but(seed=seed)) for seed in range(4, 8)]
    finish(engine, *several)
    assert several[1].answer == alone([1, 2, 3], params).answer
    assert len({tuple(sequence.answer) for sequence in several}) == 4


def test_unseeded_requests_differ() -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    assert alone([1], params).answer != alone([1], params).answer


def test_logprobs_and_the_prompts_own() -> None:
    model = FakeModel()
    engine = Engine(model, token_budget=8)
    prompt = [int(t) for t in np.random.default_rng().integers(0, 40, 29)]
    sequence = engine.add(
        prompt, SamplingParams(max_tokens=3, temperature=0, logprobs=5), score_prompt=True
    )
    finish(engine, sequence)
    logits = np.stack([model._logits(sequence.tokens[: n + 1].tolist()) for n in range(31)])
    plain = logits.astype(np.float64)
    expected = plain - np.log(np.exp(plain).sum(axis=1, keepdims=True))
    tokens = sequence.tokens
    scores = [score.logprob for score in sequence.prompt_scores or ()]
    assert scores == pytest.approx([expected[n, tokens[n + 1]] for n in range(28)])
    assert sequence.prompt_scores is not None
    for n, score in enumerate(sequence.prompt_scores):
        assert score.alternatives[0].token == np.argmax(expected[n])
    for n, piece in enumerate(sequence.pieces):
        row = expected[28 + n]
        assert piece.logprob == pytest.approx(row[piece.token])
        best = np.argsort(-row)[:5]
        assert [a.token for a in piece.alternatives] == best.tolist()
        assert [a.logprob for a in piece.alternatives] == pytest.approx(row[best].tolist())


def test_threads_share_the_steps() -> None:
    model = FakeModel(pages=200)
    engine = Engine(model, token_budget=64)
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    answers: dict[int, list[int]] = {}

    def work(first: int) -> None:
        sequence = engine.add([first, 1], params)
        while not sequence.finished:
            engine.advance(sequence)
        answers[first] = sequence.answer

    threads = [threading.Thread(target=work, args=(first,)) for first in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == {first: alone([first, 1], params).answer for first in range(6)}


def test_limits_that_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match="max_sequences"):
        Engine(FakeModel(), max_sequences=0)
