"""What crosses the border between the engine and a paged language model."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from graphc.llm.sampling import SamplingParams

Tokens = npt.NDArray[np.int32]
Logits = npt.NDArray[np.float32]

NO_ROWS: Final = 0
LAST_ROW: Final = 1
ALL_ROWS: Final = -1


class Chunk(NamedTuple):
    """The next `tokens` [n] of one sequence; `logits` is NO_ROWS, LAST_ROW or ALL_ROWS."""

    sequence: int
    tokens: Tokens
    logits: int = LAST_ROW


class Sampled(NamedTuple):
    """A drawn token and its log-probability under the softmax of the plain logits."""

    token: int
    logprob: float


class PagedModel(Protocol):
    """What the engine asks of a model; LanguageModel is one.

    `step` appends each chunk to its sequence and returns the wanted rows [rows, vocabulary] in the
    order of the chunks, valid until the next step. When pages run out it raises
    CacheExhaustedError and no sequence has changed. `pages_free` counts pages that only keep
    shared prefixes for later, since those are given up on demand.
    """

    @property
    def vocabulary_size(self) -> int: ...
    @property
    def max_context(self) -> int: ...
    @property
    def page_size(self) -> int: ...
    @property
    def pages_total(self) -> int: ...
    @property
    def pages_free(self) -> int: ...

    def create(self) -> int: ...
    def fork(self, sequence: int) -> int: ...
    def free(self, sequence: int) -> None: ...
    def length(self, sequence: int) -> int: ...
    def reuse_prefix(self, sequence: int, tokens: Tokens) -> int: ...
    def step(self, chunks: list[Chunk]) -> Logits: ...
    def sample(
        self, logits: Logits, params: SamplingParams, history: Tokens, counter: int
    ) -> Sampled: ...
