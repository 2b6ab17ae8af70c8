"""graphc-run answers with a language model: tokens in, tokens out, without Python."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import paged_decoder
import pytest


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return paged_decoder.compile_to(tmp_path_factory.mktemp("generate") / "tiny.gc")


def run(artifact: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [artifact / "graphc-run", artifact, *options]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60)


def greedy(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(np.argmax(paged_decoder.forward(paged_decoder.SMALL, tokens)[-1])))
    return tokens[len(prompt) :]


def test_greedy_answers_are_the_full_forward_s(artifact: Path) -> None:
    prompt = [3, 1, 4, 1, 5, 9, 2, 6] * 4
    expected = greedy(prompt, 20)
    text = ",".join(map(str, prompt))
    done = run(artifact, "--tokens", text, "--max-tokens", "20", "--threads", "2")
    assert done.returncode == 0 and "tokens/s" in done.stderr
    assert [int(token) for token in done.stdout.split()] == expected
    end = expected[7]
    done = run(artifact, "--tokens", text, "--max-tokens", "20", "--stop", f"60000,{end}")
    assert [int(t) for t in done.stdout.split()] == expected[: expected.index(end)]


def test_seeds(artifact: Path) -> None:
    options = ["--tokens", "5 6", "--max-tokens", "30", "--temperature", "0.9", "--seed"]
    answers = [run(artifact, *options, seed).stdout for seed in ("1", "1", "-2")]
    assert answers[0] == answers[1] != answers[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tokens", "1,x"], "'1,x' is no list of tokens"),
        (["--tokens", ""], "the prompt is empty"),
        (["--tokens", "61"], "token 0 is 61, expected 0 to 60"),
        (["--tokens", "1," * 600], "the prompt has 600 tokens, the model's context is 600"),
        (["--tokens", "1", "--stop", "-1"], "'-1' is no list of tokens"),
        (["--tokens", "1", "--temperature", "-1"], "'--temperature' is not followed by a value"),
    ],
    ids=str,
)
def test_what_is_refused(artifact: Path, options: list[str], message: str) -> None:
    done = run(artifact, *options)
    assert done.returncode == 2 and message in done.stderr, done
