"""Loads and runs mutants of an artifact: `artifact_worker.py ARTIFACT FOLDER FIRST LAST`.

Prints each seed before it is tried, so that whoever started this knows where a crash was. A mutant
may load or raise GraphcError; everything else ends the process with a traceback.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import graphc
from graphc import testing
from graphc.errors import GraphcError

VALUES: tuple[Any, ...] = (
    None, True, 0, 1, -1, 63, 1 << 31, (1 << 63) - 1, 1 << 63, 1 << 64, -(1 << 63), 1.5, 1e308,
    "", "x", "../../etc/passwd", "/etc/passwd", "libmodel.so", "int64", "float16", "\0", "b" * 9999,
    [], [[]], {}, {"a": 1},
)  # fmt: skip


def mutate_tree(record: dict[str, Any], rng: random.Random) -> None:
    """Change, remove, repeat or swap something somewhere in nested plain data."""
    places: list[tuple[Any, Any]] = []

    def collect(node: dict[str, Any] | list[Any]) -> None:
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, child in items:
            places.append((node, key))
            if isinstance(child, dict | list):
                collect(child)

    collect(record)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        node, key = rng.choice(places)
        other, other_key = rng.choice(places)
        if isinstance(node, list) and not 0 <= key < len(node):
            continue
        if isinstance(node, dict) and key not in node:
            continue
        action = rng.randrange(5)
        if action == 0:
            node[key] = rng.choice(VALUES)
        elif action == 1 and isinstance(node[key], int):
            node[key] += rng.choice((-64, -1, 1, 8, 64, 4096))
        elif action == 2 and isinstance(node, list):
            node.append(node[key])
        elif action == 3:
            del node[key]
        else:
            present = other_key in other if isinstance(other, dict) else other_key < len(other)
            if present:
                node[key] = json.loads(json.dumps(other[other_key]))


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    action = rng.randrange(4)
    if action == 0:
        return bytes(changed[: rng.randrange(len(changed))])
    if action == 1:
        return bytes(changed) + rng.randbytes(rng.choice((1, 64, 5000)))
    for _ in range(rng.choice((1, 2, 20))):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def sign(record: dict[str, Any]) -> bytes:
    """The manifest with a right digest: as one would write it who means harm."""
    record.pop("digest", None)
    text = json.dumps(record, sort_keys=True, separators=(",", ":"))
    record["digest"] = hashlib.sha256(text.encode()).hexdigest()
    return json.dumps(record).encode()


def make_mutant(original: Path, mutant: Path, rng: random.Random) -> None:
    shutil.rmtree(mutant, ignore_errors=True)
    shutil.copytree(original, mutant, copy_function=os.link)
    kind = rng.choice(("tree", "tree", "manifest", "weights"))
    name = "weights.bin" if kind == "weights" else "manifest.json"
    data = (original / name).read_bytes()
    if kind == "tree":
        record = json.loads(data)
        mutate_tree(record, rng)
        data = sign(record)
    else:
        data = mutate_bytes(data, rng)
    (mutant / name).unlink()
    (mutant / name).write_bytes(data)


def use(mutant: Path) -> None:
    loaded = graphc.load(mutant, threads=1)
    try:
        dims = {dim.name: 2 for dim in loaded.functions["main"].dims}
        loaded.run(None, testing.random_inputs(loaded.inputs, dims))
    finally:
        loaded.close()


def main(original: str, folder: str, first: str, last: str) -> None:
    refused = 0
    for seed in range(int(first), int(last)):
        print(seed, flush=True)
        mutant = Path(folder) / f"{first}.gc"
        make_mutant(Path(original), mutant, random.Random(seed))
        try:
            use(mutant)
        except GraphcError as error:
            refused += 1
            assert str(error) and len(str(error).splitlines()) <= 3, str(error)
    print("refused", refused, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
