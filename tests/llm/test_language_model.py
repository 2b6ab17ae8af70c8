"""The pages of a compiled model against its full forward without a cache, in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paged_decoder
import pytest
from paged_decoder import Shape

import graphc
from graphc.errors import ArtifactError, CacheExhaustedError, GraphcError, InputError
from graphc.llm.chunk import ALL_ROWS, LAST_ROW, NO_ROWS, Chunk
from graphc.llm.model import LanguageModel

SHAPE = Shape()
BORDERS = [1, 15, 16, 17, 31, 32, 33, 200]


@pytest.fixture
def model(paged_artifact: Path) -> LanguageModel:
    return LanguageModel.open(paged_artifact, threads=2, cache_tokens=800)


def text(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, SHAPE.vocabulary, count).astype("int32")


def check(found: np.ndarray, tokens: np.ndarray, positions: slice | list[int]) -> None:
    expected = paged_decoder.forward(SHAPE, tokens.tolist())[positions]
    np.testing.assert_allclose(found, expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("count", BORDERS)
def test_a_prefill_and_a_decode_at_page_borders(model: LanguageModel, count: int) -> None:
    tokens = text(count + 2, count)
    sequence = model.create()
    check(model.step([Chunk(sequence, tokens[:count], ALL_ROWS)]), tokens[:count], slice(None))
    for at in (count, count + 1):
        check(model.step([Chunk(sequence, tokens[at : at + 1])]), tokens[: at + 1], [at])
    assert model.length(sequence) == count + 2
    model.free(sequence)


def test_ragged_steps_equal_the_full_forward(model: LanguageModel) -> None:
    random = np.random.default_rng(2)
    whole = {model.create(): text(n, n) for n in (1, 40, 90, 150, 64)}
    done = dict.fromkeys(whole, 0)
    while any(done[s] < len(tokens) for s, tokens in whole.items()):
        chunks, places = [], []
        for sequence, tokens in whole.items():
            count = min(
                int(random.integers(0, 4) * random.integers(0, 20)), len(tokens) - done[sequence]
            )
            if count < 1:
                continue
            wanted = int(random.choice([NO_ROWS, LAST_ROW, ALL_ROWS]))
            start, done[sequence] = done[sequence], done[sequence] + count
            chunks.append(Chunk(sequence, tokens[start : start + count], wanted))
            rows = {
                NO_ROWS: [],
                LAST_ROW: [start + count - 1],
                ALL_ROWS: range(start, start + count),
            }
            places += [(tokens, at) for at in rows[wanted]]
        if not chunks:
            continue
        logits = model.step(chunks)
        assert logits.shape == (len(places), SHAPE.vocabulary)
        for row, (tokens, at) in zip(logits, places, strict=True):
            check(row, tokens[: at + 1], [at][0])
    stats = model.stats()
    assert stats.sequences == 5 and stats.tokens_held == sum(map(len, whole.values()))


def test_fork_shares_pages_until_one_writes(model: LanguageModel) -> None:
    tokens = text(40)
    first = model.create()
    model.step([Chunk(first, tokens, NO_ROWS)])
    used = model.pages_total - model.pages_free
    forks = [model.fork(first) for _ in range(3)]
    assert model.pages_total - model.pages_free == used
    both = model.step([Chunk(s, np.array([i], "int32")) for i, s in enumerate([first, *forks])])
    for i, row in enumerate(both):
        check(row, np.append(tokens, i), 40)
    assert model.stats().pages_copied == 3  # the last one has the page for itself
    assert model.stats().tokens_held == 32 + 4 * (8 + 1)
    for sequence in (first, *forks[:2]):
        model.free(sequence)
    check(model.step([Chunk(forks[2], tokens[:1])]), np.append(tokens, [3, tokens[0]]), [41])


def test_prefixes_are_found_and_evicted(model: LanguageModel) -> None:
    tokens = text(100, 5)
    first = model.create()
    model.step([Chunk(first, tokens, NO_ROWS)])
    model.free(first)
    assert model.pages_free == model.pages_total and model.stats().pages_kept == 6
    for length, taken in ((100, 96), (97, 96), (96, 80), (16, 0), (17, 16)):
        again = model.create()
        assert model.reuse_prefix(again, tokens[:length]) == taken == model.length(again)
        check(model.step([Chunk(again, tokens[taken:length])]), tokens[:length], [length - 1])
        model.free(again)
    other = model.create()
    changed = tokens.copy()
    changed[20] += 1
    assert model.reuse_prefix(other, changed % SHAPE.vocabulary) == 16
    with pytest.raises(InputError, match="only an empty one"):
        model.reuse_prefix(other, tokens)
    model.free(other)
    filler = model.create()
    model.step([Chunk(filler, text(600, 9), NO_ROWS)])
    longest = model.create()
    model.step([Chunk(longest, text(190, 8), NO_ROWS)])
    assert model.stats().pages_evicted > 0
    model.free(filler)
    model.free(longest)
    last = model.create()
    taken = model.reuse_prefix(last, tokens)
    assert taken < 96  # its end was evicted first
    check(model.step([Chunk(last, tokens[taken:])]), tokens, [99])


def test_a_full_cache_changes_nothing(model: LanguageModel) -> None:
    a, b = model.create(), model.create()
    model.step([Chunk(a, text(590), NO_ROWS), Chunk(b, text(190, 1), NO_ROWS)])
    free, held = model.pages_free, model.stats().tokens_held
    message = "the cache is full: 2 sequences need 3 more pages of 16 tokens, but 1 of 50 are free"
    with pytest.raises(CacheExhaustedError, match=message):
        model.step([Chunk(a, text(10), NO_ROWS), Chunk(b, text(30, 2), NO_ROWS)])
    assert (model.pages_free, model.stats().tokens_held) == (free, held)
    assert (model.length(a), model.length(b)) == (590, 190)
    fork = model.fork(b)
    with pytest.raises(CacheExhaustedError):
        model.step([Chunk(fork, text(3), NO_ROWS), Chunk(b, text(30, 2), NO_ROWS)])
    assert model.pages_free == free
    model.free(fork)
    logits = model.step([Chunk(b, text(1, 3))])
    check(logits, np.concatenate([text(190, 1), text(1, 3)]), [190])


def test_what_a_caller_can_get_wrong(model: LanguageModel) -> None:
    sequence = model.create()
    model.step([Chunk(sequence, text(3), NO_ROWS)])
    one = text(1)
    for message, chunks in {
        "is in this step twice": [Chunk(sequence, one), Chunk(sequence, one)],
        "chunk 0 has 0 tokens": [Chunk(sequence, text(0))],
        "token 1 is 61, expected 0 to 60": [Chunk(sequence, np.array([5, 61], "int32"))],
        "token 0 is -1": [Chunk(sequence, np.array([-1], "int32"))],
        "3 tokens and 600 more are 603, but the model's context is 600": [
            Chunk(sequence, text(600))
        ],
        "no sequence": [Chunk(sequence + 1, one)],
        "wants logits 7": [Chunk(sequence, one, 7)],
        "no chunks": [],
    }.items():
        with pytest.raises(InputError, match=message):
            model.step(chunks)
        assert model.length(sequence) == 3
    model.free(sequence)
    for call in (model.free, model.fork, model.length):
        with pytest.raises(InputError, match="it was freed"):
            call(sequence)
    model.close()
    with pytest.raises(GraphcError, match="closed"):
        model.create()


def test_capacity_shows_its_arithmetic(paged_artifact: Path) -> None:
    with LanguageModel.open(paged_artifact) as model:
        assert model.pages_total == 38 and model.max_context == 600 and model.page_size == 16
        assert model.bytes_per_token == 2 * 2 * 2 * 8 * 4
    with LanguageModel.open(paged_artifact, cache_bytes=20 * 4096 + 5) as model:
        assert model.pages_total == 20
    message = (
        "a context of 600 tokens needs 38 pages of 16 tokens, 38 x 0.004 MB = 0.1 MB, but the "
        "budget gives 20 pages = 320 tokens"
    )
    with pytest.raises(InputError, match=message):
        LanguageModel.open(paged_artifact, cache_tokens=310, max_context=600)
    with pytest.raises(InputError, match="cache_bytes is 0"):
        LanguageModel.open(paged_artifact, cache_bytes=0)


def test_other_artifacts_are_refused(mlp: object) -> None:
    with pytest.raises(ArtifactError, match="no language model"):
        LanguageModel.open(mlp.artifact)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "shape",
    [
        Shape(window=20, softcap=3.0, sinks=True, layers=1),
        Shape(heads=3, groups=1, slopes=True, layers=1),
        Shape(heads=5, groups=1, depth=12, shared=True, layers=1),
    ],
    ids=["window", "slopes", "shared"],
)
def test_variants(shape: Shape, tmp_path: Path) -> None:
    with LanguageModel.open(paged_decoder.compile_to(tmp_path / "tiny.gc", shape)) as model:
        tokens, sequence = text(75), model.create()
        model.step([Chunk(sequence, tokens[:50], NO_ROWS)])
        logits = [model.step([Chunk(sequence, tokens[at : at + 1])]).copy() for at in range(50, 75)]
        expected = paged_decoder.forward(shape, tokens.tolist())[50:]
        np.testing.assert_allclose(np.concatenate(logits), expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(("dtype", "limit"), [("bf16", 0.02), ("f16", 0.003), ("int8", 0.02)])
def test_smaller_pages(dtype: str, limit: float, tmp_path: Path) -> None:
    with LanguageModel.open(paged_decoder.compile_to(tmp_path / "t.gc", SHAPE, dtype)) as model:
        bytes_each = {"bf16": 2 * 8, "f16": 2 * 8, "int8": 8 + 4}[dtype]
        assert model.bytes_per_token == 2 * 2 * 2 * bytes_each
        tokens, sequence = text(70), model.create()
        model.step([Chunk(sequence, tokens[:60], NO_ROWS)])
        logits = [model.step([Chunk(sequence, tokens[at : at + 1])]).copy() for at in range(60, 70)]
        expected = paged_decoder.forward(SHAPE, tokens.tolist())[60:]
        error = abs(np.concatenate(logits) - expected).max() / abs(expected).max()
        assert error < limit


def test_a_model_that_takes_one_sequence_at_a_time(tmp_path: Path) -> None:
    shape = Shape(layers=1, ragged=False)
    with LanguageModel.open(paged_decoder.compile_to(tmp_path / "tiny.gc", shape)) as model:
        parts = [text(n, n) for n in (20, 3, 33)]
        sequences = [model.create() for _ in parts]
        chunks = list(map(Chunk, sequences, parts, (LAST_ROW, NO_ROWS, ALL_ROWS)))
        logits = model.step(chunks)
        expected = [paged_decoder.forward(shape, part.tolist()) for part in parts]
        rows = np.concatenate([expected[0][-1:], expected[2]])
        np.testing.assert_allclose(logits, rows, atol=2e-4, rtol=1e-4)
        with pytest.raises(InputError, match="token 1 is 61"):
            model.step([Chunk(sequences[0], text(4)), Chunk(sequences[1], np.array([0, 61]))])
        assert [model.length(s) for s in sequences] == [20, 3, 33]


def test_the_step_is_not_run_without_a_cache(paged_artifact: Path) -> None:
    with graphc.load(paged_artifact) as module:
        shapes = [(2,), (2,), (1,), (2,), (2,), (1,), (1, 1), *[(3, 16, 2, 8)] * 4]
        dtypes = ["int32"] * 7 + ["float32"] * 4
        ports = module.functions["step"].inputs
        feeds = {
            port.name: np.zeros(shape, dtype)
            for port, shape, dtype in zip(ports, shapes, dtypes, strict=True)
        }
        with pytest.raises(InputError, match="'step' works on a cache: call gc_step"):
            module.run(None, feeds)
