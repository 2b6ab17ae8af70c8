"""One request's tokens, how many of them are in the cache, and what came out so far."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final, NamedTuple

import numpy as np

from graphc.errors import GraphcError
from graphc.llm.chunk import Tokens
from graphc.llm.sampling import SamplingParams
from graphc.llm.text_stream import TextStream

_NUMBERS: Final = itertools.count()
_SCORED_CHUNK: Final = 64


class FinishReason(str, Enum):
    """Why an answer ended, in the words of OpenAI's API where it has one."""

    STOP = "stop"  # a stop token or a stop string
    LENGTH = "length"  # max_tokens, or the context or the cache is full
    ABORT = "abort"
    ERROR = "error"


class Alternative(NamedTuple):
    """A token that could have come next, and its log-probability."""

    token: int
    logprob: float


class Piece(NamedTuple):
    """What one step added: a token, and the text that is certain since then (it may be empty)."""

    text: str
    token: int | None
    logprob: float
    alternatives: tuple[Alternative, ...] = ()

    def __str__(self) -> str:
        return self.text


class PromptScore(NamedTuple):
    """Of one token of the prompt, given those before it."""

    logprob: float
    alternatives: tuple[Alternative, ...] = ()


class Sequence:
    """A request on its way through the engine; numbers grow in order of arrival.

    `pieces` is where a reader takes new output from, from any thread; `listener` is told after
    every step that added some.
    """

    def __init__(
        self,
        prompt: Tokens,
        params: SamplingParams,
        *,
        stop_tokens: Iterable[int] = (),
        text: TextStream | None = None,
        score_prompt: bool = False,
        listener: Callable[[Sequence], None] | None = None,
    ) -> None:
        self.number = next(_NUMBERS)
        self.params = params
        self.stop_tokens = frozenset(stop_tokens)
        self.text = text
        self.listener = listener
        self.prompt_length = len(prompt)
        self.prompt_scores: list[PromptScore] | None = [] if score_prompt else None
        self.pieces: deque[Piece] = deque()
        self.finish_reason: FinishReason | None = None
        self.error: GraphcError | None = None
        self.length = len(prompt)
        self.cached = 0  # tokens whose keys and values are in the cache
        self.handle: int | None = None  # the model's number for it while it runs
        self.borrowed = False  # its last page may be shared with another sequence
        self._buffer = np.empty(len(prompt) + 64, dtype=np.int32)
        self._buffer[: self.length] = prompt

    @property
    def tokens(self) -> Tokens:
        """Prompt and answer; a view that the next `append` may leave behind."""
        return self._buffer[: self.length]

    @property
    def answer(self) -> list[int]:
        tokens: list[int] = self._buffer[self.prompt_length : self.length].tolist()
        return tokens

    @property
    def generated(self) -> int:
        return self.length - self.prompt_length

    @property
    def uncached(self) -> int:
        return self.length - self.cached

    @property
    def scoring(self) -> bool:
        """Its prompt's own log-probabilities are wanted, and not all known yet."""
        known = self.prompt_scores
        return known is not None and len(known) < self.prompt_length - 1

    @property
    def longest_chunk(self) -> int:
        """Tokens that one step may take of it; a scored one gives a row of logits for each."""
        return _SCORED_CHUNK if self.scoring else self.uncached

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def next_tokens(self, count: int) -> Tokens:
        """The next `count` tokens that the cache lacks."""
        return self._buffer[self.cached : self.cached + count]

    def append(self, token: int) -> None:
        if self.length == len(self._buffer):
            grown = np.empty(2 * self.length, dtype=np.int32)
            grown[: self.length] = self._buffer
            self._buffer = grown
        self._buffer[self.length] = token
        self.length += 1

    def finish(self, reason: FinishReason, error: GraphcError | None = None) -> None:
        """End the answer; text that was held back becomes the last piece."""
        rest = self.text.finish() if self.text is not None else ""
        if rest:
            self.pieces.append(Piece(rest, None, 0.0))
        self.error = error
        self.finish_reason = reason
