"""graphc.from_torch and .pt2 files on the command line, from the module to the artifact."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from support import CommandLine

import graphc
from graphc.errors import ConfigError
from graphc.frontend.torch_export import live


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(24)
        self.up = torch.nn.Linear(24, 40)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(self.up(self.norm(x))) * mask[..., None]


INPUTS = {"x": torch.randn(2, 3, 24), "mask": torch.ones(2, 3)}
BATCH, LENGTH = torch.export.Dim("batch"), torch.export.Dim("length")
SHAPES = {"x": {0: BATCH, 1: LENGTH}, "mask": {0: BATCH, 1: LENGTH}}


def test_a_live_module(tmp_path: Path) -> None:
    module = Block().eval()
    artifact = graphc.from_torch(
        module, INPUTS, dynamic_shapes=SHAPES, output=tmp_path / "block.gc"
    )
    assert artifact.manifest.numerics is not None
    assert artifact.manifest.numerics["reference"] == "torch"
    with graphc.load(artifact.path) as loaded:
        assert [port.shape for port in loaded.inputs] == [
            ("batch", "length", 24),
            ("batch", "length"),
        ]
        x, mask = torch.randn(3, 5, 24), torch.rand(3, 5)
        with torch.no_grad():
            expected = module(x, mask)
        (actual,) = loaded(x=x.numpy(), mask=mask.numpy()).values()
    assert abs(actual - expected.numpy()).max() < 1e-5


def test_a_module_in_training_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"call its eval\(\) first"):
        graphc.from_torch(Block(), INPUTS, output=tmp_path / "block.gc")
    with pytest.raises(ConfigError, match=r"takes a torch\.nn\.Module or an ExportedProgram"):
        graphc.from_torch(3, output=tmp_path / "block.gc")


def test_check_of_a_pt2_file(tmp_path: Path, graphc_cli: CommandLine) -> None:
    path = tmp_path / "block.pt2"
    live.save(Block().eval(), INPUTS, SHAPES, path)
    done = graphc_cli("check", str(path), "--json")
    assert done.status == 0
    assert json.loads(done.out)["ok"]


def test_check_lists_what_a_pt2_file_holds_that_is_not_compiled(
    tmp_path: Path, graphc_cli: CommandLine
) -> None:
    class Spectrum(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.qr(x)[0]

    path = tmp_path / "spectrum.pt2"
    live.save(Spectrum().eval(), (torch.randn(3, 3),), None, path)
    done = graphc_cli("check", str(path))
    assert done.status == 2
    assert "linalg_qr" in done.out and "test_from_torch.py:" in done.out
    assert "1 blocker" in done.err


def test_without_torch_it_says_how_to_install_it(
    tmp_path: Path, graphc_cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(b"")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "pip install 'graphc[torch]'" in graphc_cli.refused("check", path)
