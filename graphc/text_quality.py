"""How well a compiled language model predicts a text, and how far it is from another one.

    perplexity = exp(mean of -log p(next token))        KL = mean of sum p log(p / q)

The text is cut into windows that are stepped from empty caches; every token but the first of a
window counts. p is the other model, the float one as a rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from graphc.errors import InputError
from graphc.llm.chunk import Chunk
from graphc.llm.model import LanguageModel
from graphc.llm.tokenizer import Tokenizer

Tokens = npt.NDArray[np.int32]
Logs = npt.NDArray[np.float32]

WINDOW: Final = 512


@dataclass(frozen=True)
class TextQuality:
    """`divergence`, `agreement` and `other_perplexity` are None without another model.

    `agreement` is how often both think the same token likeliest.
    """

    tokens: int
    perplexity: float
    other_perplexity: float | None = None
    divergence: float | None = None
    agreement: float | None = None

    def record(self) -> dict[str, float | None]:
        """Plain data."""
        return asdict(self)


def measure(
    directory: Path,
    text: str,
    other: Path | None = None,
    *,
    tokens: int | None = None,
    threads: int | None = None,
) -> TextQuality:
    """Both artifacts on the first `tokens` tokens of a text, by the tokenizer of the first."""
    ids = np.array(Tokenizer.open(directory).encode(text)[:tokens], np.int32)
    if ids.size < 2:
        raise InputError("the text is too short: it takes two tokens to predict one")
    losses: list[float] = []
    others: list[float] = []
    divergences: list[float] = []
    same: list[bool] = []
    models = [LanguageModel.open(path, threads=threads) for path in (directory, other) if path]
    size = min(WINDOW, *(model.max_context for model in models))
    for window in _windows(ids, size):
        logs = [_logs(model, window) for model in models]
        losses += _losses(logs[0], window)
        if len(logs) == 2:
            if logs[0].shape != logs[1].shape:
                raise InputError(f"{directory} and {other} have vocabularies of different sizes")
            others += _losses(logs[1], window)
            divergences += (np.exp(logs[1]) * (logs[1] - logs[0])).sum(axis=-1).tolist()
            same += (logs[0].argmax(axis=-1) == logs[1].argmax(axis=-1)).tolist()
    for model in models:
        model.close()
    quality = TextQuality(len(losses), float(np.exp(np.mean(losses))))
    if other is None:
        return quality
    return TextQuality(
        quality.tokens,
        quality.perplexity,
        float(np.exp(np.mean(others))),
        float(np.mean(divergences)),
        float(np.mean(same)),
    )


def _windows(ids: Tokens, size: int) -> Iterator[Tokens]:
    for start in range(0, ids.size, size):
        window = ids[start : start + size]
        if window.size >= 2:
            yield window


def _logs(model: LanguageModel, window: Tokens) -> Logs:
    """log p of the whole vocabulary for every token of the window but the first."""
    sequence = model.create()
    try:
        logits = model.step([Chunk(sequence, window, -1)])[:-1].astype(np.float32)
    finally:
        model.free(sequence)
    logits -= logits.max(axis=-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return logits


def _losses(logs: Logs, window: Tokens) -> list[float]:
    found: list[float] = (-logs[np.arange(window.size - 1), window[1:]]).tolist()
    return found
