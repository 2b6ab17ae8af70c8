"""Measures a language model: reading a prompt, writing an answer; llama.cpp in turns with it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from graphc import artifact
from graphc.bench import peak
from graphc.errors import ConfigError, ToolError
from graphc.llm.chunk import LAST_ROW, NO_ROWS, Chunk, Tokens
from graphc.llm.model import LanguageModel
from graphc.llm.sampling import SamplingParams
from graphc.targets import detect

_CHUNK: Final = 512
_LEAST_ROUNDS: Final = 3
_PAUSE_SECONDS: Final = 0.05
_GREEDY: Final = SamplingParams(temperature=0)

Round = Callable[[Tokens, int], tuple[float, float]]
"""A prompt and the tokens to write -> seconds of reading and of writing."""


@dataclass(frozen=True)
class Side:
    """One runtime; medians over its rounds."""

    name: str
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    rounds: int

    def record(self) -> dict[str, object]:
        return {
            "name": self.name,
            "prefill_tokens_per_s": self.prefill_tokens_per_s,
            "decode_tokens_per_s": self.decode_tokens_per_s,
            "rounds": self.rounds,
        }


@dataclass(frozen=True)
class Result:
    """`step_bytes` are those that writing a token reads: the weights, and the cache on average."""

    prefill: int
    decode: int
    threads: int
    sides: tuple[Side, ...]
    step_bytes: int
    read_gbs: float

    @property
    def bandwidth_share(self) -> float:
        """Of the measured rate at which this machine reads."""
        return self.sides[0].decode_tokens_per_s * self.step_bytes / (self.read_gbs * 1e9)

    def record(self) -> dict[str, object]:
        ours = self.sides[0]
        return {
            "prefill": self.prefill,
            "decode": self.decode,
            "threads": self.threads,
            "prefill_tokens_per_s": ours.prefill_tokens_per_s,
            "decode_tokens_per_s": ours.decode_tokens_per_s,
            "bandwidth_share": self.bandwidth_share,
            "bytes_per_token": self.step_bytes,
            "read_gb_per_s": self.read_gbs,
            "sides": [side.record() for side in self.sides],
        }


def bench(
    directory: Path,
    prefill: int,
    decode: int,
    *,
    against: Path | None = None,
    threads: int | None = None,
    seconds: float = 5.0,
) -> Result:
    """Read prompts of `prefill` tokens and write `decode`, for `seconds` each side.

    `against` is a GGUF file for llama.cpp. Every round has another prompt, so that no cache of
    prefixes answers.
    """
    threads = threads or detect.machine().cores
    _, read_gbs = peak(threads)
    manifest = artifact.read_manifest(directory)
    with LanguageModel.open(directory, threads=threads, cache_tokens=prefill + decode + 1) as model:
        if prefill + decode > model.max_context:
            raise ConfigError(
                f"{prefill} and {decode} tokens are more than the context of {model.max_context}"
            )
        sides: dict[str, Round] = {"graphc": lambda p, n: run_once(model, p, n)}
        if against is not None:
            sides["llama.cpp"] = _llama(against, prefill + decode, threads)
        measured = _measure(sides, model.vocabulary_size, prefill, decode, seconds)
        cache = model.bytes_per_token * (prefill + decode // 2)
    return Result(prefill, decode, threads, measured, manifest.weights.size + cache, read_gbs)


def _measure(
    sides: dict[str, Round], vocabulary: int, prefill: int, decode: int, seconds: float
) -> tuple[Side, ...]:
    """Rounds in turns; the first of each side does not count."""
    random = np.random.default_rng(0)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for side in sides.values():
        side(_prompt(random, vocabulary, prefill), decode)
    deadline = time.perf_counter() + seconds * len(sides)
    while time.perf_counter() < deadline or min(map(len, times.values())) < _LEAST_ROUNDS:
        for name, side in sides.items():
            time.sleep(_PAUSE_SECONDS)  # the other's threads fall asleep
            times[name].append(side(_prompt(random, vocabulary, prefill), decode))
    return tuple(
        Side(
            name,
            prefill / statistics.median(reading for reading, _ in rounds),
            decode / statistics.median(writing for _, writing in rounds),
            len(rounds),
        )
        for name, rounds in times.items()
    )


def _prompt(random: np.random.Generator, vocabulary: int, count: int) -> Tokens:
    return random.integers(0, vocabulary, count).astype(np.int32)


def run_once(model: LanguageModel, prompt: Tokens, decode: int) -> tuple[float, float]:
    """Seconds of reading a prompt, and of writing `decode` tokens after it, the likeliest ones."""
    sequence = model.create()
    try:
        start = time.perf_counter()
        for at in range(0, len(prompt), _CHUNK):
            part = prompt[at : at + _CHUNK]
            wanted = LAST_ROW if at + len(part) == len(prompt) else NO_ROWS
            logits = model.step([Chunk(sequence, part, wanted)])
        token = model.sample(logits[0], _GREEDY, prompt, 0).token
        read = time.perf_counter()
        for count in range(decode):
            logits = model.step([Chunk(sequence, np.array([token], np.int32), LAST_ROW)])
            token = model.sample(logits[0], _GREEDY, prompt, count).token
        return read - start, time.perf_counter() - read
    finally:
        model.free(sequence)


def _llama(file: Path, context: int, threads: int) -> Round:
    try:
        import llama_cpp
    except ImportError as error:
        raise ToolError("llama.cpp is not here: pip install llama-cpp-python") from error
    try:
        model: Any = llama_cpp.Llama(
            str(file),
            n_ctx=context + 8,
            n_threads=threads,
            n_threads_batch=threads,
            n_batch=_CHUNK,
            verbose=False,
        )
    except ValueError as error:
        raise ConfigError(f"{file}: llama.cpp cannot load it: {error}") from error

    def run(prompt: Tokens, decode: int) -> tuple[float, float]:
        model.reset()
        start = time.perf_counter()
        model.eval(prompt.tolist())
        token = model.sample(temp=0.0)
        read = time.perf_counter()
        for _ in range(decode):
            model.eval([token])
            token = model.sample(temp=0.0)
        return read - start, time.perf_counter() - read

    return run


def table_rows(result: Result) -> list[tuple[str, ...]]:
    """For show.table."""
    rows: list[tuple[str, ...]] = [("runtime", "prefill tokens/s", "decode tokens/s")]
    for side in result.sides:
        rates = (side.prefill_tokens_per_s, side.decode_tokens_per_s)
        rows.append((side.name, *(f"{rate:.1f}" for rate in rates)))
    return rows
