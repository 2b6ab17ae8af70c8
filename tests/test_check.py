"""Deliberately broken or unsupported models: `check` names every planted fault and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from broken_models import BROKEN, Build, Planted
from support import CommandLine

from graphc.check import check


@pytest.mark.parametrize("build", BROKEN, ids=[build.__name__ for build in BROKEN])
def test_onnx(tmp_path: Path, build: Build) -> None:
    planted = build(tmp_path / "m.onnx")
    report = check(tmp_path / "m.onnx")
    found = [(blocker.node, blocker.operator) for blocker in report.blockers]
    assert sorted(found) == sorted(planted), [str(blocker) for blocker in report.blockers]
    for blocker in report.blockers:
        assert blocker.why and blocker.repair
        assert blocker.node in blocker.text
        if blocker.operator:
            assert blocker.domain and blocker.opset != 0


class Spectrum(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(x).abs() + torch.linalg.svdvals(x).sum()


class Counter(torch.nn.Module):
    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x * self.count


class Complex(torch.nn.Module):
    def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return x + z.real


def program(module: torch.nn.Module, *inputs: torch.Tensor) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        torch.export.save(torch.export.export(module, inputs, strict=False), path)

    return write


def no_archive(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04 no archive")


X = torch.ones(3, 4)


@pytest.mark.parametrize(
    ("write", "operators", "words"),
    [
        (program(Spectrum(), X), {"_fft_r2c.default", "_linalg_svd.default"}, ""),
        (program(Counter(), X), {""}, "buffer count"),
        (program(Complex(), X, torch.ones(3, 4, dtype=torch.complex64)), {""}, "complex64"),
        (no_archive, {""}, "m.pt2"),
    ],
    ids=["operators", "buffer", "type", "archive"],
)
def test_programs(
    tmp_path: Path, write: Callable[[Path], None], operators: set[str], words: str
) -> None:
    write(tmp_path / "m.pt2")
    report = check(tmp_path / "m.pt2")
    assert {blocker.operator for blocker in report.blockers} == operators, report.blockers
    assert len(report.blockers) == len(operators)
    assert all(words in blocker.text and blocker.repair for blocker in report.blockers)


def folder(path: Path, config: object, weights: bytes | None) -> None:
    text = config if isinstance(config, str) else json.dumps(config)
    (path / "config.json").write_text(text)
    if weights is not None:
        (path / "model.safetensors").write_bytes(weights)


BERT = {
    "model_type": "bert", "architectures": ["BertModel"], "hidden_size": 8, "vocab_size": 11,
    "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
}  # fmt: skip
EMPTY = (2).to_bytes(8, "little") + b"{}"


@pytest.mark.parametrize(
    ("config", "weights", "words"),
    [
        ("{", None, "config.json"),
        ({"model_type": "mine", "auto_map": {"AutoModel": "mine.Model"}}, EMPTY, "code of the"),
        ({"model_type": "frobnicator"}, EMPTY, "config.json"),
        (BERT, None, "no weights"),
        (BERT, EMPTY, "no weights for"),
        (BERT, b"\xff" * 64, "cannot load"),
    ],
    ids=["json", "code", "kind", "none", "missing", "damaged"],
)
def test_folders(tmp_path: Path, config: object, weights: bytes | None, words: str) -> None:
    folder(tmp_path, config, weights)
    (blocker,) = check(tmp_path).blockers
    assert words in blocker.text and blocker.why and blocker.repair


def test_the_command_line_has_it_as_a_table_and_as_json(
    graphc_cli: CommandLine, tmp_path: Path
) -> None:
    (many,) = (build for build in BROKEN if build.__name__ == "many_at_once")
    planted: Planted = many(tmp_path / "m.onnx")
    done = graphc_cli("check", tmp_path / "m.onnx")
    assert done.status == 2 and f"{len(planted)} blockers" in done.err
    rows = [line.split()[:2] for line in done.out.splitlines()[1:]]
    assert {row[0] for row in rows} == {name for name, _ in planted}
    done = graphc_cli("check", tmp_path / "m.onnx", "--json")
    blockers = json.loads(done.out)["blockers"]
    assert {(b["node"], b["operator"]) for b in blockers} == planted
    assert {"why", "repair", "domain", "opset"} <= set(blockers[0])
