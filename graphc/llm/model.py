"""A compiled language model over its paged cache: sequences of tokens in, rows of logits out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from graphc.errors import ArtifactError, InputError
from graphc.llm.chunk import Chunk, Logits, Sampled, Tokens
from graphc.llm.native import NativeCache
from graphc.llm.sampling import SamplingParams
from graphc.manifest import LanguageInfo
from graphc.module import open_library
from graphc.native import Library


@dataclass(frozen=True)
class CacheStats:
    """What lies in the pages. `pages_kept`: free ones that still hold a prefix, given up on demand.

    `tokens_held` are those of live sequences, shared ones counted once; the others count from the
    beginning.
    """

    pages_total: int
    pages_free: int
    pages_kept: int
    bytes: int
    sequences: int
    tokens_held: int
    tokens_reused: int
    pages_evicted: int
    pages_copied: int


class LanguageModel:
    """The pages and the step of one model; used by one thread at a time. See PagedModel."""

    def __init__(
        self, directory: Path, info: LanguageInfo, library: Library, cache: NativeCache
    ) -> None:
        self.directory = directory
        self.info = info
        self.vocabulary_size = int(cache.language.vocabulary)
        self.max_context = int(cache.language.max_context)
        self.page_size = int(cache.language.page_size)
        self.bytes_per_token = int(cache.language.bytes_per_token)
        self._library, self._cache = library, cache
        self.pages_total = self.stats().pages_total

    @classmethod
    def open(
        cls,
        directory: str | Path,
        *,
        threads: int | None = None,
        cache_tokens: int | None = None,
        cache_bytes: int | None = None,
        max_context: int | None = None,
    ) -> LanguageModel:
        """Open the artifact of a causal language model.

        The cache holds `cache_tokens` tokens or as many as `cache_bytes` have room for; by default
        one sequence of the model's context, in at most half of the machine's memory. Raises
        InputError with the arithmetic where it holds less than `max_context` tokens, ArtifactError
        when there is no such model.
        """
        place = Path(directory)
        for name, value in (
            ("cache_tokens", cache_tokens),
            ("cache_bytes", cache_bytes),
            ("max_context", max_context),
        ):
            if value is not None and not 1 <= value < 1 << 62:
                raise InputError(f"{name} is {value}: expected a number above 0")
        manifest, library = open_library(place, threads)
        if manifest.llm is None:
            raise ArtifactError(
                f"{place} is no language model with a cache: run it with graphc.load, or compile "
                "a causal language model without --decoder off"
            )
        cache = NativeCache(library, cache_tokens or 0, cache_bytes or 0, max_context or 0)
        return cls(place, manifest.llm, library, cache)

    @property
    def pages_free(self) -> int:
        """Pages that the next steps may take, those that only keep prefixes among them."""
        return self.stats().pages_free

    def stats(self) -> CacheStats:
        """What lies in the pages now."""
        stats = self._cache.stats()
        names = CacheStats.__dataclass_fields__
        return CacheStats(**{name: int(getattr(stats, name)) for name in names})

    def create(self) -> int:
        """A new empty sequence."""
        return self._cache.create()

    def fork(self, sequence: int) -> int:
        """A copy that shares the pages until one of the two writes to them."""
        return self._cache.fork(sequence)

    def free(self, sequence: int) -> None:
        """Give up a sequence; its full pages are kept as prefixes until they are needed."""
        self._cache.free(sequence)

    def length(self, sequence: int) -> int:
        """How many tokens a sequence has."""
        return self._cache.length(sequence)

    def reuse_prefix(self, sequence: int, tokens: Tokens) -> int:
        """Begin an empty sequence with whole pages that hold these tokens already; how many."""
        return self._cache.reuse(sequence, tokens)

    def step(self, chunks: Sequence[Chunk]) -> Logits:
        """Append every chunk to its sequence; the wanted rows [rows, vocabulary] of logits.

        They are valid until the next step. Raises CacheExhaustedError or InputError and leaves
        every sequence as it was.
        """
        if not chunks:
            raise InputError("no chunks: a step needs at least one")
        sequences, parts, wanted = zip(*chunks, strict=True)
        tokens = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return self._cache.step(sequences, [len(part) for part in parts], tokens, wanted)

    def sample(
        self, logits: Logits, params: SamplingParams, history: Tokens, counter: int
    ) -> Sampled:
        """Draw a token from logits [vocabulary].

        The draw depends on the seed and on `counter`, the number of tokens drawn so far, which are
        the last of `history`. Raises GraphcError when the logits are not numbers.
        """
        return Sampled(*self._cache.sample(logits, params, history, counter))

    def close(self) -> None:
        """Free pages and threads; later calls fail."""
        self._cache.close()
        self._library.close()

    def __enter__(self) -> LanguageModel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
