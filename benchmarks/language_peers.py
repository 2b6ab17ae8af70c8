"""One peer of benchmarks/language_models.py in a process of its own, with its own interpreter.

    python language_peers.py llama.cpp|openvino MODEL.gguf THREADS

A line with the peer's version comes first; then each line of standard input is a block to run and
is answered by a line. All lines are JSON. Nothing of graphc is imported.

    {"read": tokens, "prompt": tokens, "write": n}  ->  {"read": seconds, "write": seconds}
    {"score": tokens, "into": file.npy}             ->  {}, the logits of every token in the file
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any

import numpy as np


class LlamaCpp:
    """llama.cpp through its C functions, so that no Python but this is between the tokens."""

    def __init__(self, model: str, threads: int) -> None:
        import llama_cpp

        self.version = llama_cpp.__version__
        self._api = llama_cpp
        self._model = llama_cpp.Llama(
            model, n_ctx=1024, n_threads=threads, n_threads_batch=threads, verbose=False
        )
        self._context = self._model.ctx
        self._vocabulary = self._model.n_vocab()

    def read(self, tokens: list[int]) -> float:
        self._clear()
        start = time.perf_counter()
        self._step(tokens)
        return time.perf_counter() - start

    def write(self, prompt: list[int], count: int) -> float:
        self._clear()
        token = self._step(prompt)
        start = time.perf_counter()
        for _ in range(count):
            token = self._step([token])
        return time.perf_counter() - start

    def logits(self, tokens: list[int]) -> np.ndarray:
        self._clear()
        batch = self._api.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for place, token in enumerate(tokens):
            batch.token[place], batch.pos[place], batch.logits[place] = token, place, 1
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
        assert self._api.llama_decode(self._context, batch) == 0
        found = self._api.llama_get_logits(self._context)
        self._api.llama_batch_free(batch)
        return np.ctypeslib.as_array(found, (len(tokens), self._vocabulary)).copy()

    def _clear(self) -> None:
        self._api.llama_memory_clear(self._api.llama_get_memory(self._context), True)

    def _step(self, tokens: list[int]) -> int:
        """The likeliest next token."""
        values = (ctypes.c_int32 * len(tokens))(*tokens)
        batch = self._api.llama_batch_get_one(values, len(tokens))
        assert self._api.llama_decode(self._context, batch) == 0
        found = self._api.llama_get_logits_ith(self._context, -1)
        return int(np.ctypeslib.as_array(found, (self._vocabulary,)).argmax())


class OpenVino:
    """OpenVINO GenAI's pipeline; times are its own, without its tokenizer."""

    def __init__(self, model: str, threads: int) -> None:
        import openvino
        import openvino_genai

        self.version = openvino_genai.__version__.partition("-")[0]
        self._genai, self._openvino = openvino_genai, openvino
        self._pipeline = openvino_genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=threads)

    def read(self, tokens: list[int]) -> float:
        return float(self._run(tokens, 1).get_ttft().mean) / 1e3

    def write(self, prompt: list[int], count: int) -> float:
        return float(self._run(prompt, count + 1).get_tpot().mean) / 1e3 * count

    def logits(self, tokens: list[int]) -> np.ndarray:
        raise NotImplementedError("the pipeline gives no logits")

    def _run(self, tokens: list[int], count: int) -> Any:
        options = self._genai.GenerationConfig(max_new_tokens=count, ignore_eos=True)
        done = self._pipeline.generate(self._openvino.Tensor(np.array([tokens])), options)
        assert len(done.tokens[0]) == count
        return done.perf_metrics


PEERS = {"llama.cpp": LlamaCpp, "openvino": OpenVino}


def main() -> None:
    name, model, threads = sys.argv[1:]
    peer = PEERS[name](model, int(threads))
    _say({"version": peer.version})
    for line in sys.stdin:
        block = json.loads(line)
        if "score" in block:
            np.save(block["into"], peer.logits(block["score"]))
            _say({})
        else:
            read = peer.read(block["read"])
            _say({"read": read, "write": peer.write(block["prompt"], block["write"])})


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
