"""Ways of answering many prompts with one model: static batches, and graphc's engine."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from graphc.llm.chunk import LAST_ROW, Chunk, Tokens
from graphc.llm.engine import Engine
from graphc.llm.model import LanguageModel
from graphc.llm.sampling import SamplingParams


def engine(model: LanguageModel, prompts: Sequence[Tokens], counts: Sequence[int]) -> None:
    """All at once; a request begins when another's answer makes room in the step."""
    requests = Engine(model)
    for prompt, count in zip(prompts, counts, strict=True):
        requests.add(prompt, SamplingParams(temperature=0, max_tokens=count, ignore_eos=True))
    while requests.has_work:
        requests.step()
    assert requests.counters.answer_tokens == sum(counts)


def static(
    model: LanguageModel,
    prompts: Sequence[Tokens],
    counts: Sequence[int],
    size: int,
    *,
    leave: bool,
) -> None:
    """`size` prompts at a time, in the order given, each batch to its end; `leave` as in batch."""
    for at in range(0, len(prompts), size):
        batch(model, prompts[at : at + size], counts[at : at + size], leave=leave)


def batch(
    model: LanguageModel, prompts: Sequence[Tokens], counts: Sequence[int], *, leave: bool
) -> float:
    """A batch that nothing joins; the seconds from its first tokens to its last.

    An answer that is complete leaves, or is computed on until the longest is complete too.
    """
    greedy = SamplingParams(temperature=0)
    sequences = [model.create() for _ in prompts]
    parts, writing = list(prompts), list(range(len(prompts)))
    start = 0.0
    for step in range(max(counts)):
        logits = model.step([Chunk(sequences[i], parts[i], LAST_ROW) for i in writing])
        for i, row in zip(writing, logits, strict=True):
            token = model.sample(row, greedy, prompts[i], step).token
            parts[i] = np.array([token], np.int32)
        start = start or time.perf_counter()
        if leave:
            writing = [i for i in writing if counts[i] > step + 1]
    end = time.perf_counter()
    for sequence in sequences:
        model.free(sequence)
    return end - start
