"""Log-probabilities from rows of logits: log softmax(x) = x - max x - log sum exp(x - max x)."""

from __future__ import annotations

import numpy as np

from graphc.llm.chunk import Logits, Tokens
from graphc.llm.sequence import Alternative


def alternatives(logits: Logits, count: int) -> tuple[Alternative, ...]:
    """The `count` likeliest tokens of one row [V], the likeliest first; ties by token."""
    if count <= 0:
        return ()
    count = min(count, len(logits))
    best = np.argpartition(logits, len(logits) - count)[len(logits) - count :]
    best = best[np.lexsort((best, -logits[best]))]
    values = logits[best].astype(np.float64) - _log_sums(logits[None])[0]
    return tuple(
        Alternative(token, value)
        for token, value in zip(best.tolist(), values.tolist(), strict=True)
    )


def logprobs_of(logits: Logits, tokens: Tokens) -> list[float]:
    """Of tokens [n], each under its own row of logits [n, V]."""
    if len(tokens) == 0:
        return []
    chosen = logits[np.arange(len(tokens)), tokens].astype(np.float64)
    values: list[float] = (chosen - _log_sums(logits)).tolist()
    return values


def _log_sums(logits: Logits) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """log sum exp over each row, in float64 where it counts."""
    top = logits.max(axis=-1, keepdims=True)
    sums = np.exp(logits - top, dtype=np.float32).sum(axis=-1, dtype=np.float64)
    result: np.ndarray[tuple[int], np.dtype[np.float64]] = np.log(sums) + top[..., 0]
    return result
