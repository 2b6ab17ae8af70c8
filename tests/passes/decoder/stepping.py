"""Runs a derived step on TVM's own virtual machine: pages, tables and ragged batches by numpy.

The composites of the paged cache run as they define themselves; caches are handed back by the
function, since nothing here writes in place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import tvm
from relax_vm import register_check_indices
from tvm import relax

from graphc.ir import Model, Port, Signature
from graphc.passes.graph import Graph
from graphc.passes.paged import CACHE_APPEND, PAGE_SIZE

PAGES = 24


@dataclass
class _Sequence:
    """What is stored of one sequence: its length and its pages in order."""

    length: int = 0
    pages: list[int] = field(default_factory=list)


class Stepper:
    """A language model that is stepped by chunks: `step({name: tokens})`."""

    def __init__(self, model: Model, seed: int = 0) -> None:
        assert model.decoder is not None
        self.info = model.decoder
        register_check_indices()
        model = _with_caches_returned(model)
        executable = relax.build(model.mod, tvm.target.Target({"kind": "llvm"}))
        self._machine = relax.VirtualMachine(executable, tvm.cpu())
        count = len(model.signatures["step"].inputs)
        self._weights = [
            _tensor(model.params[var.name]) for var in model.mod["step"].params[count:]
        ]
        generator = np.random.default_rng(seed)
        self._free = list(generator.permutation(PAGES))
        self._sequences: dict[str, _Sequence] = {}
        # Rubbish in the pages: nothing may be read that was not written.
        self._caches = [
            generator.standard_normal((PAGES, PAGE_SIZE, c.heads, c.width)).astype(c.dtype) * 100
            for c in self.info.caches
        ]

    def step(self, chunks: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
        """The logits of every new token of some sequences."""
        tokens, positions, slots, starts, lengths = [], [], [], [0], []
        tables: list[list[int]] = []
        for name, chunk in chunks.items():
            sequence = self._sequences.setdefault(name, _Sequence())
            for token in chunk:
                if sequence.length % PAGE_SIZE == 0:
                    sequence.pages.append(int(self._free.pop()))
                page = sequence.pages[sequence.length // PAGE_SIZE]
                tokens.append(int(token))
                positions.append(sequence.length)
                slots.append(page * PAGE_SIZE + sequence.length % PAGE_SIZE)
                sequence.length += 1
            starts.append(len(tokens))
            lengths.append(sequence.length)
            tables.append(sequence.pages)
        width = max(map(len, tables))
        table = [[*pages, *[0] * (width - len(pages))] for pages in tables]
        rows = np.arange(len(tokens))
        numbers = (tokens, positions, rows, slots, starts, lengths, table)
        inputs = [_tensor(np.asarray(value, np.int32)) for value in numbers]
        caches = [_tensor(cache) for cache in self._caches]
        logits, *caches = self._machine["step"](*inputs, *caches, *self._weights)
        self._caches = [cache.numpy() for cache in caches]
        found = logits.numpy()
        return {
            name: found[starts[number] : starts[number + 1]] for number, name in enumerate(chunks)
        }


def _with_caches_returned(model: Model) -> Model:
    graph = Graph(model, "step")
    appended = {}
    for node in graph.nodes():
        if node.op == "call" and str(graph.callee(node).attrs["Composite"]) == CACHE_APPEND:
            appended[node.inputs[0].name] = node
    names = [cache.name for cache in model.decoder.caches]
    graph.outputs += [appended[name] for name in names]
    signature = model.signatures["step"]
    outputs = [Port(name, "float32", ()) for name in ("logits", *names)]
    signatures = {"step": Signature(signature.inputs, tuple(outputs), signature.dims)}
    return dataclasses.replace(graph.finish(), signatures=signatures)


def _tensor(array: np.ndarray) -> tvm.runtime.Tensor:
    return tvm.runtime.tensor(np.require(array, requirements=["C", "A"]))


CHUNKS = (7, 1, 1, 5, 1, 8)


def ragged_logits(stepper: Stepper, sequences: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All logits of sequences that are fed by chunks, each from another place in `CHUNKS` on."""
    left = {name: list(tokens) for name, tokens in sequences.items()}
    found: dict[str, list[np.ndarray]] = {name: [] for name in sequences}
    turn = 0
    while any(left.values()):
        chunks = {}
        for offset, (name, tokens) in enumerate(left.items()):
            size = CHUNKS[(turn + offset) % len(CHUNKS)]
            if tokens:
                chunks[name] = tokens[:size]
                del tokens[:size]
        for name, logits in stepper.step(chunks).items():
            found[name].append(logits)
        turn += 1
    return {name: np.concatenate(parts) for name, parts in found.items()}
