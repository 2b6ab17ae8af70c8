"""Compares a language model's steps with the reference's full forward, in ragged batches by chunks.

A step sees the tokens up to its own only, so that equal logits prove what the compiler derived:
that no later token has a say. Sequences cross the borders of pages and are fed out of step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from graphc import artifact, testing
from graphc.errors import InputError, VerificationError
from graphc.llm.chunk import ALL_ROWS, Chunk
from graphc.llm.model import LanguageModel
from graphc.reference import Eager, FeedPort, Refused
from graphc.verify import Case, OutputCheck, Report

CHUNKS: Final = (7, 1, 1, 5, 1, 8)
LENGTHS: Final = (37, 23, 16)
STEP_TOLERANCE: Final[Mapping[str, float]] = {"f32": 1e-3, "f16": 2e-2, "bf16": 8e-2}
"""What `Difference.worst` of logits may be, by the type of the pages."""

Logits = npt.NDArray[np.float32]


def verify_steps(
    directory: Path,
    reference: Eager,
    *,
    threads: int | None = None,
    tolerance: float | None = None,
    rounds: bool = False,
) -> Report:
    """Step random sequences and compare all of their logits.

    `rounds`: weights or activations are of few bits, so that errors are judged by their norm.
    Raises VerificationError when the reference runs none of the sequences.
    """
    llm = artifact.read_manifest(directory).llm
    assert llm is not None, directory
    random = np.random.default_rng(0)
    asked: list[tuple[npt.NDArray[np.int64], Logits]] = []
    reason = ""
    for length in LENGTHS:
        tokens = random.integers(0, llm.vocabulary, min(length, llm.max_context))
        try:
            asked.append((tokens, _full(reference, tokens, llm.vocabulary)))
        except (Refused, InputError) as error:
            reason = reason or str(error)
    if not asked:
        raise VerificationError(f"no sequence could be verified: {reason}")
    pages = sum(len(tokens) // llm.page_size + 1 for tokens, _ in asked)
    with LanguageModel.open(
        directory, threads=threads, cache_tokens=(pages + 1) * llm.page_size
    ) as model:
        found = step_all(model, [tokens for tokens, _ in asked])
    limit = STEP_TOLERANCE.get(llm.cache_dtype)
    cases = []
    for (tokens, expected), logits in zip(asked, found, strict=True):
        check = _check(logits, expected, tolerance, None if rounds else limit)
        cases.append(Case("steps", {"tokens": len(tokens)}, {"tokens": tokens}, (check,)))
    return Report(tuple(cases), (reason,) if reason else (), reference.kind)


def step_all(model: LanguageModel, sequences: Sequence[npt.NDArray[np.integer]]) -> list[Logits]:
    """All logits of sequences that are fed together, each from another place in CHUNKS on."""
    numbers = [model.create() for _ in sequences]
    done = [0] * len(sequences)
    found: list[list[Logits]] = [[] for _ in sequences]
    turn = 0
    while any(at < len(tokens) for at, tokens in zip(done, sequences, strict=True)):
        chunks, owners = [], []
        for index, tokens in enumerate(sequences):
            size = CHUNKS[(turn + index) % len(CHUNKS)]
            part = tokens[done[index] : done[index] + size]
            if len(part):
                chunks.append(Chunk(numbers[index], part.astype(np.int32), ALL_ROWS))
                owners.append((index, len(part)))
        rows, start = model.step(chunks), 0
        for index, count in owners:
            found[index].append(rows[start : start + count].copy())
            start += count
            done[index] += count
        turn += 1
    for number in numbers:
        model.free(number)
    return [np.concatenate(parts) for parts in found]


def _full(reference: Eager, tokens: npt.NDArray[np.int64], vocabulary: int) -> Logits:
    """The logits [tokens, vocabulary] of one sequence from the model as it was exported."""
    feeds = {port.name: _feed(port, tokens) for port in reference.ports}
    for value in reference.run(feeds).values():
        if value.shape == (1, len(tokens), vocabulary):
            return np.asarray(value[0], np.float32)
    raise Refused(f"{reference.path}: it has no logits [1, {len(tokens)}, {vocabulary}]")


def _feed(port: FeedPort, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.generic]:
    """Tokens, and for the other inputs what a whole sequence without padding has."""
    row = tokens[None]
    if "past" in port.name:
        shape = [
            1 if axis == 0 else 0 if isinstance(extent, str) else extent
            for axis, extent in enumerate(port.shape)
        ]
        return np.zeros(shape, port.dtype)
    if "mask" in port.name:
        row = np.ones_like(row)
    elif "position" in port.name:
        row = np.arange(len(tokens))[None]
    elif "type" in port.name:
        row = np.zeros_like(row)
    return row.astype(port.dtype)


def _check(
    found: Logits, expected: Logits, override: float | None, limit: float | None
) -> OutputCheck:
    difference = testing.compare(found, expected)
    by_norm = override is None and limit is None
    return OutputCheck(
        "logits",
        "float32",
        found.shape,
        difference.max_abs,
        difference.max_rel,
        difference.cosine,
        difference.norm if by_norm else difference.worst,
        testing.QUANTISED_TOLERANCE if by_norm else (override or limit or 0.0),
    )
