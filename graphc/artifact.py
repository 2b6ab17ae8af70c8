"""An artifact on disk: its manifest, its weights file, and publication as one atomic step."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy.typing as npt

from graphc import __version__, weights_file
from graphc import manifest as codec
from graphc.errors import ArtifactError
from graphc.manifest import (
    DimInfo,
    FileInfo,
    FunctionInfo,
    KernelInfo,
    Manifest,
    PortInfo,
    TargetInfo,
)
from graphc.weights_file import WeightEntry, WeightTable

__all__ = [
    "DimInfo",
    "Draft",
    "FileInfo",
    "FunctionInfo",
    "KernelInfo",
    "Manifest",
    "PortInfo",
    "TargetInfo",
    "WeightEntry",
    "WeightTable",
    "check_files",
    "check_loadable",
    "publish",
    "read_manifest",
]

FORMAT_VERSION: Final = codec.FORMAT_VERSION
LIBRARY: Final = "libmodel.so"
WEIGHTS: Final = "weights.bin"
MANIFEST: Final = "manifest.json"
RUNNER: Final = "graphc-run"

RUNTIME: Final = Path(__file__).resolve().parent / "runtime"
_COPIES: Final = {
    "include/graphc.h": RUNTIME / "graphc.h",
    "include/graphc_fill.h": RUNTIME / "graphc_fill.h",
    "include/graphc_tokenizer.h": RUNTIME / "tokenizer" / "graphc_tokenizer.h",
    "example.c": RUNTIME / "example" / "example.c",
}
_MAX_MANIFEST: Final = 1 << 28
_CHUNK: Final = 1 << 20
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


@dataclass(frozen=True)
class Draft:
    """An artifact in the making; `path` is a temporary directory beside its final place."""

    path: Path

    def write_weights(self, params: Mapping[str, npt.NDArray[Any]]) -> WeightTable:
        """Write weights.bin in the mapping's order, tensor by tensor; returns its table."""
        place = self.path / WEIGHTS
        with _writing(place):
            return weights_file.write(place, params)

    def write_file(self, name: str, data: bytes, executable: bool = False) -> None:
        """Write another file; `name` may have directories in it."""
        place = self.path / name
        with _writing(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
            place.chmod(0o755 if executable else 0o644)

    def write_manifest(self, manifest: Manifest) -> Manifest:
        """Complete the artifact: header, example and the manifest, with every file's digest.

        May be called again, with a report added. Returns the manifest as written.
        """
        for name, source in _COPIES.items():
            self.write_file(name, source.read_bytes())
        own = (LIBRARY, RUNNER, *_COPIES)
        present = sorted(place.name for place in self.path.iterdir() if place.is_file())
        kept = [name for name in present if name not in (*own, MANIFEST, WEIGHTS)]
        files = tuple(
            FileInfo(name, (self.path / name).stat().st_size, _digest(self.path / name))
            for name in (*own, *kept)
            if (self.path / name).exists()
        )
        written = replace(
            manifest,
            files=files,
            graphc_version=manifest.graphc_version or __version__,
            tvm_version=manifest.tvm_version or _version("apache-tvm"),
        )
        self.write_file(MANIFEST, codec.to_json(written))
        return written


@contextmanager
def publish(output: Path) -> Iterator[Draft]:
    """A draft that becomes the directory `output` when the block ends normally.

    Whatever exception leaves the block, nothing is left behind and an artifact that was at
    `output` is untouched. Raises ArtifactError when `output` is something else than an artifact,
    or cannot be written.
    """
    place = Path(os.path.realpath(output))
    _check_replaceable(place)
    try:
        draft = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    except OSError as error:
        raise ArtifactError(f"cannot write {output}: {_reason(error)}") from error
    try:
        yield Draft(draft)
        with _writing(place):
            draft.chmod(0o777 & ~_umask())
            _check_replaceable(place)
            _move(draft, place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def read_manifest(directory: Path) -> Manifest:
    """The manifest of the artifact in `directory`; ArtifactError when it is missing or damaged."""
    place = Path(directory) / MANIFEST
    try:
        if place.stat().st_size > _MAX_MANIFEST:
            raise ArtifactError(f"{place}: larger than {_MAX_MANIFEST} bytes, not a manifest")
        data = place.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ArtifactError(
            f"{directory} is not an artifact: it has no {MANIFEST}; make one with graphc compile"
        ) from error
    except OSError as error:
        raise ArtifactError(f"cannot read {place}: {_reason(error)}") from error
    return codec.from_json(data, str(place))


def check_loadable(directory: Path, manifest: Manifest) -> None:
    """Raise ArtifactError unless library and weights are those of the manifest.

    Of the weights the size and header are checked; the C runtime checks index tables as well.
    """
    libraries = [file for file in manifest.files if file.name == LIBRARY]
    if not libraries:
        raise ArtifactError(f"{directory / MANIFEST}: lists no {LIBRARY}; compile the model again")
    _check_file(directory, libraries[0])
    with _reading(directory / WEIGHTS):
        weights_file.check(directory / WEIGHTS, manifest.weights)


def check_files(directory: Path, manifest: Manifest) -> None:
    """Raise ArtifactError unless every file is there and unchanged, every tensor included."""
    for file in manifest.files:
        _check_file(directory, file)
    with _reading(directory / WEIGHTS):
        weights_file.check(directory / WEIGHTS, manifest.weights, contents=True)


def _check_file(directory: Path, file: FileInfo) -> None:
    place = directory / file.name
    with _reading(place):
        size = place.stat().st_size
        if size != file.size:
            raise ArtifactError(
                f"{place}: has {size} bytes, expected {file.size}; copy the artifact again"
            )
        if _digest(place) != file.sha256:
            raise ArtifactError(f"{place}: is damaged; copy the artifact again")


@contextmanager
def _reading(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArtifactError(f"cannot read {place}: {_reason(error)}") from error


@contextmanager
def _writing(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArtifactError(f"cannot write {place}: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_CHUNK):
            digest.update(block)
    return digest.hexdigest()


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _umask() -> int:
    """The process's umask; there is no way to read it without setting it, except from Linux."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o022


def _check_replaceable(place: Path) -> None:
    try:
        exists = place.exists()
        is_ours = not exists or (
            place.is_dir() and ((place / MANIFEST).is_file() or not any(place.iterdir()))
        )
    except OSError as error:
        raise ArtifactError(f"cannot write {place}: {_reason(error)}") from error
    if not is_ours:
        raise ArtifactError(
            f"{place} exists and is not an artifact: refusing to replace it; give another -o"
        )
    if not place.parent.is_dir():
        raise ArtifactError(f"cannot write {place}: {place.parent} is not a directory")


def _move(draft: Path, place: Path) -> None:
    """Put `draft` at `place`; what was there ends up at `draft`, for the caller to remove."""
    if not place.exists():
        draft.rename(place)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    exchange = getattr(libc, "renameat2", None)
    if exchange is not None:
        names = os.fsencode(draft), os.fsencode(place)
        if exchange(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
            return
    # A file system without exchange: for a moment there is no artifact, but never half of one.
    aside = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    try:
        place.rename(aside / "old")
        try:
            draft.rename(place)
        except OSError:
            (aside / "old").rename(place)
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
