"""Measures SmolLM2-135M beside llama.cpp and OpenVINO GenAI; writes the README's table of it.

    pip install llama-cpp-python openvino-genai
    python benchmarks/language_models.py [--artifact smollm2.gc] [--llama-python PYTHON] [--print]

All sides run the same GGUF file on the same tokens and threads, in turns, each peer in a process of
its own; figures are medians. Tokens are drawn at random, so that no cache of prefixes answers.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import language_batches
import numpy as np
import readme

import graphc
from graphc import artifact, bench, bench_llm
from graphc.llm.chunk import Tokens
from graphc.llm.model import LanguageModel
from graphc.llm.tokenizer import Tokenizer
from graphc.targets import detect

sys.path.insert(0, str(readme.ROOT / "tests"))
from support import MODELS, Models

READ, PROMPT, WRITE = 512, 20, 96
LONG, LONG_WRITE = 2000, 64
BATCH, REQUESTS, LENGTHS = 8, 64, (8, 49)
SCORED: Final = 400
PAUSE_SECONDS: Final = 0.3
TITLES: Final = {"graphc": "graphc", "llama.cpp": "llama.cpp", "openvino": "OpenVINO GenAI"}
TEXT: Final = readme.ROOT / "docs" / "language_models.md"

Times = dict[str, list[float]]


class Peer:
    """benchmarks/language_peers.py, asked for one block at a time."""

    def __init__(self, name: str, python: str, model: Path, threads: int) -> None:
        script = Path(__file__).with_name("language_peers.py")
        self._process = subprocess.Popen(
            [python, str(script), name, str(model), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.version = self._answer()["version"]

    def ask(self, block: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(block) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:  # libraries may print other lines
            if line.startswith("{"):
                return dict(json.loads(line))
        raise SystemExit(f"{self._process.args!r} ended: is that peer installed there?")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--artifact", type=Path, help="the compiled model; else it is compiled")
    parser.add_argument(
        "--llama-python", default=sys.executable, help="an interpreter that has the two peers"
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side")
    parser.add_argument("--print", action="store_true", help="leave README.md as it is")
    options = parser.parse_args()
    model = Models(MODELS).path("smollm2")
    with tempfile.TemporaryDirectory() as scratch:
        directory = options.artifact
        if directory is None:
            directory = graphc.compile(model, output=Path(scratch) / "smollm2.gc").path
        table = "\n".join(
            rows(directory, model, options.llama_python, options.rounds, Path(scratch))
        )
    print(table)
    if not options.print:
        readme.replace("language models", table)


def rows(directory: Path, model: Path, python: str, rounds: int, scratch: Path) -> list[str]:
    """The Markdown table, and below it what it was measured on."""
    threads = detect.machine().cores
    _, read_gbs = bench.peak(threads)
    weights = artifact.read_manifest(directory).weights.size
    room = REQUESTS * 2 * LENGTHS[1] + LONG + LONG_WRITE + READ
    peers = {name: Peer(name, python, model, threads) for name in TITLES if name != "graphc"}
    with LanguageModel.open(directory, threads=threads, cache_tokens=room) as ours:
        random = np.random.default_rng(0)
        beside = _beside(ours, peers, random, rounds)
        alone = _alone(ours, random, rounds)
        cache = ours.bytes_per_token
    distances = _distances(directory, model, peers["llama.cpp"], scratch)
    versions = {name: peer.version for name, peer in peers.items()}
    for peer in peers.values():
        peer.close()
    read = {name: READ / statistics.median(times) for name, times in beside["read"].items()}
    write = {name: WRITE / statistics.median(times) for name, times in beside["write"].items()}
    rate = {name: statistics.median(values) for name, values in alone.items()}

    def share(speed: float, context: float) -> str:
        return f"{speed * (weights + cache * context) / (read_gbs * 1e9):.0%}"

    long_share = share(rate["long"], LONG + LONG_WRITE / 2)
    return [
        f"| SmolLM2-135M, GGUF Q4_1 | {' | '.join(TITLES.values())} | times faster |",
        "|---|---|---|---|---|",
        _row(f"reading {READ} tokens, tokens/s", read),
        _row(f"writing {WRITE} tokens after {PROMPT}, tokens/s", write),
        _row("of the read bandwidth", {"graphc": share(write["graphc"], PROMPT + WRITE / 2)}),
        _row(f"writing {LONG_WRITE} tokens after {LONG:,}, tokens/s", {"graphc": rate["long"]}),
        _row("of the read bandwidth", {"graphc": long_share}),
        _row(f"{BATCH} answers at once, tokens/s of all", {"graphc": rate["batch"]}),
        _row(f"{REQUESTS} ragged requests, answer tokens/s", {"graphc": rate["engine"]}),
        _row(f"the same in static batches of {BATCH}", {"graphc": rate["static"]}),
        _row("the same, finished answers leave the batch", {"graphc": rate["leaving"]}),
        _row(f"KL to float32 on {SCORED} tokens", distances),
        "",
        f"{threads} threads on {readme.processor()} (reads {read_gbs:.0f} GB/s, measured), medians "
        f"of {rounds} turns; llama-cpp-python {versions['llama.cpp']}, OpenVINO GenAI "
        f"{versions['openvino']}. Writing a token reads {weights / 1e6:.0f} MB of weights and "
        f"{cache / 1e3:.0f} kB of cache for each token before it. Requests have prompts and "
        f"answers of {LENGTHS[0]} to {LENGTHS[1] - 1} tokens each; {BATCH} at once are "
        f"{rate['batch'] / write['graphc']:.1f} times one, and the engine is "
        f"{rate['engine'] / rate['static']:.1f} times static batches. float32: the file's weights "
        "in torch. `python benchmarks/language_models.py` measures it again.",
    ]


def _row(title: str, values: Mapping[str, float | str]) -> str:
    cells = [_cell(values[name]) if name in values else "" for name in TITLES]
    others = [value for name, value in values.items() if name != "graphc"]
    faster = ""
    if title.endswith("/s") and others:
        faster = f"{float(values['graphc']) / max(map(float, others)):.2f}"
    return f"| {' | '.join([title, *cells, faster])} |"


def _cell(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.0f}" if value >= 10 else f"{value:.4f}"


def _beside(
    ours: LanguageModel, peers: Mapping[str, Peer], random: np.random.Generator, rounds: int
) -> dict[str, Times]:
    """Seconds of reading and writing, each side in turn; the first turn does not count."""
    found: dict[str, Times] = {kind: {name: [] for name in TITLES} for kind in ("read", "write")}

    def run(block: Mapping[str, Any]) -> dict[str, Any]:
        read, _ = bench_llm.run_once(ours, np.array(block["read"], np.int32), 0)
        _, write = bench_llm.run_once(ours, np.array(block["prompt"], np.int32), block["write"])
        return {"read": read, "write": write}

    sides = {"graphc": run, **{name: peer.ask for name, peer in peers.items()}}
    for turn in range(rounds + 1):
        block = {
            "read": _tokens(ours, random, READ).tolist(),
            "prompt": _tokens(ours, random, PROMPT).tolist(),
            "write": WRITE,
        }
        for name, side in sides.items():
            time.sleep(PAUSE_SECONDS)  # the other's threads fall asleep
            seconds = side(block)
            print(f"{name}: {seconds}", file=sys.stderr)
            if turn:
                for kind, times in found.items():
                    times[name].append(seconds[kind])
    return found


def _alone(ours: LanguageModel, random: np.random.Generator, rounds: int) -> Times:
    """Tokens/s of what is measured of graphc only."""
    found: Times = {name: [] for name in ("long", "batch", "engine", "static", "leaving")}
    for _ in range(rounds):
        _, seconds = bench_llm.run_once(ours, _tokens(ours, random, LONG), LONG_WRITE)
        found["long"].append(LONG_WRITE / seconds)
        prompts = [_tokens(ours, random, PROMPT) for _ in range(BATCH)]
        seconds = language_batches.batch(ours, prompts, [WRITE] * BATCH, leave=False)
        found["batch"].append(BATCH * (WRITE - 1) / seconds)
        prompts = [_tokens(ours, random, int(random.integers(*LENGTHS))) for _ in range(REQUESTS)]
        counts = random.integers(*LENGTHS, REQUESTS).tolist()
        work = (ours, prompts, counts)
        runs: dict[str, Callable[[], None]] = {
            # the engine first: it would find these prompts in the cache
            "engine": functools.partial(language_batches.engine, *work),
            "static": functools.partial(language_batches.static, *work, BATCH, leave=False),
            "leaving": functools.partial(language_batches.static, *work, BATCH, leave=True),
        }
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            found[name].append(sum(counts) / (time.perf_counter() - start))
        print({name: values[-1] for name, values in found.items()}, file=sys.stderr)
    return found


def _distances(directory: Path, model: Path, llama: Peer, scratch: Path) -> dict[str, float]:
    """The mean KL divergence of the next token from the file's weights in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    text = TEXT.read_text(encoding="utf-8")
    tokens = Tokenizer.open(directory).encode(text)[:SCORED]
    with graphc.LLM(directory, cache_tokens=SCORED + 1) as llm:
        found = {"graphc": llm.logits(tokens)}
    llama.ask({"score": tokens, "into": str(scratch / "logits.npy")})
    found["llama.cpp"] = np.load(scratch / "logits.npy")
    plain = AutoModelForCausalLM.from_pretrained(
        model.parent, gguf_file=model.name, dtype=torch.float32
    )
    with torch.no_grad():
        exact = _logs(plain(torch.tensor([tokens])).logits[0].numpy())
    return {
        name: float((np.exp(exact) * (exact - _logs(logits))).sum(axis=-1).mean())
        for name, logits in found.items()
    }


def _logs(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True)))


def _tokens(ours: LanguageModel, random: np.random.Generator, count: int) -> Tokens:
    return random.integers(0, ours.vocabulary_size, count).astype(np.int32)


if __name__ == "__main__":
    main()
