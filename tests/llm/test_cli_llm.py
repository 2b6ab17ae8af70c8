"""`graphc generate` and `graphc chat`: text, JSON, Ctrl-C in the middle, and bad use."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_model import FakeModel
from support import CommandLine

from graphc.llm.llm import LLM


def answer(folder: Path, prompt: str, **options: Any) -> str:
    return LLM(folder, model=FakeModel(vocabulary=600)).generate(prompt, **options).text


def test_generate(graphc_cli: CommandLine, faked: Path, tmp_path: Path) -> None:
    expected = answer(faked, "The quick", max_tokens=12, temperature=0)
    options = ("--max-tokens", "12", "--temperature", "0")
    assert graphc_cli("generate", faked, "--prompt", "The quick", *options).out == expected + "\n"
    (tmp_path / "prompt.txt").write_text("The quick")
    done = graphc_cli("generate", faked, "--prompt-file", tmp_path / "prompt.txt", *options)
    assert done.out == expected + "\n"
    both = graphc_cli("generate", faked, "--prompt", "The quick", "--prompt", "fox", *options).out
    assert both.startswith(f"{expected}\n---\n")


def test_generate_json(graphc_cli: CommandLine, faked: Path) -> None:
    options = ("--max-tokens", "5", "--seed", "3", "--logprobs", "2", "--json")
    first = json.loads(graphc_cli("generate", faked, "--prompt", "fox", *options).out)
    again = json.loads(graphc_cli("generate", faked, "--prompt", "fox", *options).out)
    assert first["answers"] == again["answers"] and first["seconds"] > 0
    (record,) = first["answers"]
    assert record["text"] == answer(faked, "fox", max_tokens=5, seed=3)
    assert len(record["logprobs"]) == len(record["token_ids"]) <= 5
    assert len(record["logprobs"][0]["alternatives"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --prompt"),
        (["--prompt", ""], "empty"),
        (["--prompt", "x", "--temperature", "-1"], "temperature is -1"),
        (["--prompt", "x", "--top-p", "0"], "top_p"),
        (["--prompt", "x " * 500], "context holds 256"),
        (["--prompt-file", "/nowhere/at/all"], "cannot read"),
    ],
)
def test_bad_use(graphc_cli: CommandLine, faked: Path, arguments: list[str], message: str) -> None:
    assert message in graphc_cli.refused("generate", faked, *arguments)


def test_a_folder_without_a_model(graphc_cli: CommandLine, tmp_path: Path) -> None:
    assert "not an artifact" in graphc_cli.refused("generate", tmp_path, "--prompt", "x")


def test_invalid_utf8(graphc_cli: CommandLine, faked: Path, tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("naïve".encode("latin-1"))
    message = graphc_cli.refused("generate", faked, "--prompt-file", tmp_path / "latin.txt")
    assert "byte 2 is 0xef" in message and "iconv" in message


def test_chat(graphc_cli: CommandLine, faked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("fox\n\n/reset\nfox\n/exit\nnever\n"))
    done = graphc_cli("chat", faked, "--temperature", "0", "--max-tokens", "8")
    assert done.status == 0
    first, second, rest = done.out.split("\n\n")
    llm = LLM(faked, model=FakeModel(vocabulary=600))
    expected = llm.chat([{"role": "user", "content": "fox"}], temperature=0, max_tokens=8).text
    assert first == second == expected and not rest
    assert done.err.count("tokens/s") == 2


def test_chat_needs_a_template(
    graphc_cli: CommandLine, faked: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_bytes((faked / "tokenizer.json").read_bytes())
    monkeypatch.setattr(sys, "stdin", io.StringIO("fox\n"))
    assert "no chat template" in graphc_cli.refused("chat", tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO("fox\n"))
    assert "'default'" in graphc_cli.refused("chat", faked, "--template", "x")


def test_ctrl_c_stops_the_answer_and_not_the_program(faked: Path) -> None:
    """The model sends the signal itself, at its third step."""
    code = (
        "import os, signal, sys; sys.path.insert(0, sys.argv.pop(1))\n"
        "from fake_model import FakeModel\nfrom graphc import cli\nfrom graphc.llm import llm\n"
        "class Interrupting(FakeModel):\n"
        "    def step(self, chunks):\n"
        "        if len(self.steps) == 2: os.kill(os.getpid(), signal.SIGINT)\n"
        "        return super().step(chunks)\n"
        "llm._open = lambda *_: Interrupting(vocabulary=600, pages=200)\n"
        "cli.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent), "chat", str(faked), "--seed", "1"],
        input="fox\nfox\n",
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[stopped]") == 1
    assert done.stderr.count("tokens/s") == 2
