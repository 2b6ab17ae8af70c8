"""The engine, the command line, the bench and graphc-run on a compiled model of random weights."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import paged_decoder
import pytest
from paged_decoder import Shape
from support import CommandLine

import graphc
from graphc.llm.llm import LLM
from graphc.llm.vocabulary.companion import vocabulary_of

SHAPE = Shape(vocabulary=600)


@pytest.fixture(scope="module")
def artifact(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder with the tokenizer of 600 tokens beside it."""
    place = paged_decoder.compile_to(tmp_path_factory.mktemp("compiled") / "tiny.gc", SHAPE)
    for file in folder.iterdir():
        shutil.copy(file, place)
    vocabulary = vocabulary_of(place)
    assert vocabulary is not None
    (place / "vocabulary.bin").write_bytes(vocabulary)
    return place


def prompts(count: int) -> list[list[int]]:
    random = np.random.default_rng()
    shared = random.integers(2, 600, 40).tolist()
    return [
        shared[: random.integers(0, 40)] + random.integers(2, 600, random.integers(1, 60)).tolist()
        for _ in range(count)
    ]


def nearly_greedy(tokens: list[int], answer: tuple[int, ...]) -> bool:
    """Whether each token is the likeliest, or as good, by the full forward in float64."""
    logits = paged_decoder.forward(SHAPE, tokens + list(answer))
    rows = logits[len(tokens) - 1 : len(tokens) - 1 + len(answer)]
    return bool(np.all(rows.max(axis=1) - rows[np.arange(len(answer)), list(answer)] < 1e-3))


def test_answers_of_a_full_engine_are_those_of_the_model(artifact: Path) -> None:
    given = prompts(24)
    with graphc.LLM(artifact, threads=2, cache_tokens=700, token_budget=48) as llm:
        answers = llm.generate(given, temperature=0, max_tokens=30)
        assert llm.engine.scheduler.preemptions + llm.engine.counters.steps > 0
        assert llm.model.pages_free == llm.model.pages_total
    for tokens, answer in zip(given, answers, strict=True):
        assert nearly_greedy(tokens, answer.token_ids)


def test_preemption_on_real_pages(artifact: Path) -> None:
    given = prompts(8)
    with graphc.LLM(artifact, cache_tokens=256, token_budget=64) as llm:
        answers = llm.generate(given, temperature=0, max_tokens=60, ignore_eos=True)
        assert llm.engine.scheduler.preemptions > 0
        assert llm.model.pages_free == llm.model.pages_total
    for tokens, answer in zip(given, answers, strict=True):
        assert len(answer.token_ids) == 60 and nearly_greedy(tokens, answer.token_ids)


def test_logits_scores_and_seeds(artifact: Path) -> None:
    (tokens,) = prompts(1)
    with graphc.LLM(artifact) as llm:
        expected = paged_decoder.forward(SHAPE, tokens)
        np.testing.assert_allclose(llm.logits(tokens), expected, atol=2e-4, rtol=1e-4)
        logprobs = expected - np.log(np.exp(expected).sum(axis=1, keepdims=True))
        assert llm.score(tokens) == pytest.approx(
            logprobs[np.arange(len(tokens) - 1), tokens[1:]], abs=1e-3
        )
        alone = llm.generate(tokens, seed=3, max_tokens=20)
        among = llm.generate([*prompts(5), tokens], seed=3, max_tokens=20)[-1]
        assert alone.token_ids == among.token_ids


def letters(text: str) -> str:
    return text.replace("\ufffd", "")


def test_graphc_generate_and_graphc_run_write_the_same(
    graphc_cli: CommandLine, artifact: Path
) -> None:
    options = ("--max-tokens", "24")
    for text in ("The quick brown fox", "Straße 🇩🇪 " * 9):
        ours = graphc_cli("generate", artifact, "--prompt", text, "--temperature", "0", *options)
        command = [artifact / "graphc-run", artifact, "--prompt", text, *options]
        done = subprocess.run([str(part) for part in command], capture_output=True, check=True)
        # Broken characters may be told apart otherwise; nothing else may differ.
        assert letters(done.stdout.decode()) == letters(ours.out)
        assert b"tokens/s" in done.stderr
    with LLM(artifact) as llm:
        answer = llm.chat([{"role": "user", "content": "fox"}], temperature=0, max_tokens=24).text
    command = [artifact / "graphc-run", artifact, "--chat", "fox", *options]
    done = subprocess.run([str(part) for part in command], capture_output=True, check=True)
    assert letters(done.stdout.decode()) == letters(answer + "\n")


def test_graphc_run_says_what_is_wrong(artifact: Path, tmp_path: Path) -> None:
    def refused(*arguments: str) -> str:
        command = [str(artifact / "graphc-run"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        assert done.returncode == 2 and not done.stdout
        return done.stderr

    place = str(artifact)
    assert "empty" in refused(place, "--prompt", "")
    assert "context is 600" in refused(place, "--prompt", "x " * 700)
    done = subprocess.run(
        [bytes(artifact / "graphc-run"), place.encode(), b"--prompt", b"ab\xff"],
        capture_output=True,
    )
    assert done.returncode == 2 and b"byte 2 is 0xff" in done.stderr
    copy = tmp_path / "copy.gc"
    shutil.copytree(artifact, copy)
    (copy / "vocabulary.bin").write_bytes((artifact / "vocabulary.bin").read_bytes()[:-9])
    assert "damaged" in refused(str(copy), "--prompt", "x")
    (copy / "vocabulary.bin").unlink()
    assert "vocabulary.bin" in refused(str(copy), "--prompt", "x")


def test_bench(graphc_cli: CommandLine, artifact: Path) -> None:
    options = ("--prefill", "40", "--decode", "8", "--seconds", "0.05")
    record = json.loads(graphc_cli("bench", artifact, *options, "--json").out)
    assert record["prefill_tokens_per_s"] > 0 and record["decode_tokens_per_s"] > 0
    assert 0 < record["bandwidth_share"] < 10
    assert "decode tokens/s" in graphc_cli("bench", artifact, *options).out
    message = graphc_cli.refused("bench", artifact, "--prefill", "600")
    assert "600 and 128 tokens" in message
    assert "--prefill" in graphc_cli.refused("bench", artifact, "--against", "llama.cpp", "x.gguf")
    both = graphc_cli.refused("bench", artifact, *options, "--against", "onnxruntime", "x.onnx")
    assert "llama.cpp" in both
