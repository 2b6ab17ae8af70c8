"""A deterministic stand-in for LanguageModel: real pages, and logits that hash what lies in them.

A token's logits depend on every token before it as read back through the page table, so a page
that was freed too early, shared wrongly or not copied on write changes the answers.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence

import numpy as np

from graphc.errors import CacheExhaustedError
from graphc.llm.chunk import Chunk, Logits, Sampled, Tokens
from graphc.llm.sampling import SamplingParams


class FakeModel:
    """Pages are lists of tokens with reference counts; full ones are found again by their prefix.

    `strict` fails when a step would run out of pages that the engine should have counted.
    """

    def __init__(
        self,
        *,
        vocabulary: int = 40,
        pages: int = 64,
        page_size: int = 4,
        max_context: int = 256,
        strict: bool = True,
    ) -> None:
        self.vocabulary_size = vocabulary
        self.max_context = max_context
        self.page_size = page_size
        self.pages_total = pages
        self.steps: list[list[int]] = []  # lengths of the chunks of each step
        self.poison: int | None = None  # logits after this token are NaN
        self._strict = strict
        self._numbers = itertools.count(1)
        self._contents: dict[int, list[int]] = {}
        self._references: dict[int, int] = {}
        self._unused = list(range(pages))
        self._tables: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}
        self._prefixes: dict[tuple[int, ...], int] = {}  # full prefix -> its last page

    @property
    def pages_free(self) -> int:
        return self._available()

    def _available(self) -> int:
        """Unused pages, and those that only the prefix table knows."""
        return len(self._unused) + sum(not n for n in self._references.values())

    @property
    def open_sequences(self) -> int:
        return len(self._tables)

    def create(self) -> int:
        number = next(self._numbers)
        self._tables[number], self._lengths[number] = [], 0
        return number

    def fork(self, sequence: int) -> int:
        number = self.create()
        self._tables[number] = list(self._tables[sequence])
        self._lengths[number] = self._lengths[sequence]
        for page in self._tables[number]:
            self._references[page] += 1
        return number

    def free(self, sequence: int) -> None:
        del self._lengths[sequence]
        for page in self._tables.pop(sequence):
            self._references[page] -= 1
            if not self._references[page] and page not in self._prefixes.values():
                self._drop(page)

    def length(self, sequence: int) -> int:
        return self._lengths[sequence]

    def reuse_prefix(self, sequence: int, tokens: Tokens) -> int:
        assert not self._lengths[sequence]
        full = [
            self._prefixes.get(tuple(tokens[:end].tolist()))
            for end in range(self.page_size, len(tokens) + 1, self.page_size)
        ]
        taken = list(itertools.takewhile(lambda page: page is not None, full))
        pages = [page for page in taken if page is not None]
        for page in pages:
            self._references[page] += 1
        self._tables[sequence] = pages
        self._lengths[sequence] = min(len(pages) * self.page_size, len(tokens) - 1)
        return self._lengths[sequence]

    def step(self, chunks: list[Chunk]) -> Logits:
        assert len({chunk.sequence for chunk in chunks}) == len(chunks)
        self.steps.append([len(chunk.tokens) for chunk in chunks])
        if sum(self._needed(chunk) for chunk in chunks) > self._available():
            assert not self._strict, "the engine planned more pages than there are"
            raise CacheExhaustedError("the cache is exhausted")
        rows = []
        for chunk in chunks:
            assert len(chunk.tokens) and chunk.logits in (-1, 0, 1)
            start = self._lengths[chunk.sequence]
            for token in chunk.tokens.tolist():
                self._append(chunk.sequence, token)
            end = self._lengths[chunk.sequence]
            assert end <= self.max_context
            wanted = {-1: range(start, end), 0: range(0), 1: range(end - 1, end)}[chunk.logits]
            history = self._read(chunk.sequence)
            rows += [self._logits(history[: position + 1]) for position in wanted]
        if not rows:
            return np.empty((0, self.vocabulary_size), np.float32)
        return np.stack(rows)

    def sample(
        self, logits: Logits, params: SamplingParams, history: Tokens, counter: int
    ) -> Sampled:
        plain = logits.astype(np.float64)
        logprobs = plain - np.log(np.exp(plain - plain.max()).sum()) - plain.max()
        if params.greedy or np.isnan(plain).any():
            token = int(np.argmax(plain))
        else:
            scaled = plain / params.temperature
            random = np.random.default_rng([abs(params.seed or 0), counter])
            token = int(np.argmax(scaled + random.gumbel(size=len(scaled))))
        return Sampled(token, float(logprobs[token]))

    def _needed(self, chunk: Chunk) -> int:
        start = self._lengths[chunk.sequence]
        end = start + len(chunk.tokens)
        table = self._tables[chunk.sequence]
        shared = start % self.page_size and self._is_shared(table[start // self.page_size])
        return -(-end // self.page_size) - -(-start // self.page_size) + bool(shared)

    def _is_shared(self, page: int) -> bool:
        return self._references[page] > 1 or page in self._prefixes.values()

    def _append(self, sequence: int, token: int) -> None:
        table, at = self._tables[sequence], self._lengths[sequence] % self.page_size
        if at == 0:
            table.append(self._take([]))
        elif self._is_shared(table[-1]):
            copy = self._take(self._contents[table[-1]][:at])
            self._references[table[-1]] -= 1
            table[-1] = copy
        del self._contents[table[-1]][at:]
        self._contents[table[-1]].append(token)
        self._lengths[sequence] += 1
        if self._lengths[sequence] % self.page_size == 0:
            self._prefixes.setdefault(tuple(self._read(sequence)), table[-1])

    def _take(self, contents: list[int]) -> int:
        if not self._unused:  # give up a prefix that nobody uses
            self._drop(next(page for page, n in self._references.items() if not n))
        page = self._unused.pop()
        self._contents[page], self._references[page] = contents, 1
        return page

    def _drop(self, page: int) -> None:
        self._prefixes = {key: value for key, value in self._prefixes.items() if value != page}
        del self._references[page]
        self._contents[page] = [-1] * self.page_size
        self._unused.append(page)

    def _read(self, sequence: int) -> list[int]:
        stored = [token for page in self._tables[sequence] for token in self._contents[page]]
        return stored[: self._lengths[sequence]]

    def _logits(self, history: Sequence[int]) -> Logits:
        assert -1 not in history
        if history[-1] == self.poison:
            return np.full(self.vocabulary_size, np.nan, np.float32)
        digest = hashlib.sha256(np.asarray(history, np.int32).tobytes()).digest()
        random = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:8], "little")))
        return 3 * random.standard_normal(self.vocabulary_size, dtype=np.float32)
