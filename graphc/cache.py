"""Finished artifacts by the hash of everything that decides their bytes, bounded in size."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from graphc import env

_RECORD: Final = "entry.json"
_FILES: Final = "files"
_UNFINISHED: Final = ".tmp-"
_STALE_SECONDS: Final = 24 * 3600.0
# Distributions whose version may change what a compile writes.
_TOOLS: Final = (
    "apache-tvm",
    "apache-tvm-ffi",
    "ml_dtypes",
    "numpy",
    "onnx",
    "onnxruntime",
    "ziglang",
)
_SOURCES: Final = frozenset({".py", ".c", ".h", ".toml", ".ll", ".jsonl", ".json"})


def key(sources: Iterable[Path], options: Mapping[str, Any]) -> str:
    """The name of the artifact that these model files and options give with this graphc.

    Only a file's own name counts beside its contents: the same model elsewhere is the same.
    """
    parts = {
        "options": dict(options),
        "sources": [[path.name, _digest(path)] for path in sources],
        "graphc": _own_digest(),
        "tools": {name: metadata.version(name) for name in _TOOLS},
        "python": platform.python_version(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def restore(name: str, directory: Path) -> bool:
    """Copy an entry's files into `directory` and check them; False when there is no good entry."""
    entry = _folder() / name
    if not (entry / _RECORD).exists():
        return False
    if _copy(entry, directory):
        return True
    env.log(0, f"cache entry {entry} is damaged: removed, compiling afresh")
    _clear(directory)
    _remove(entry)
    return False


def _copy(entry: Path, directory: Path) -> bool:
    """Whether all files of the entry are there, copied and unchanged."""
    try:
        record = json.loads((entry / _RECORD).read_text(encoding="utf-8"))
        os.utime(entry / _RECORD)
        for relative in record:
            (directory / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(entry / _FILES / relative, directory / relative)
        return all(_digest(directory / path) == digest for path, digest in record.items())
    except (FileNotFoundError, ValueError, AttributeError):
        return False


def store(name: str, directory: Path) -> None:
    """Keep a copy of a finished artifact; a full or read-only disk is reported and passed over."""
    folder = _folder()
    entry = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        draft = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder))
        try:
            shutil.copytree(directory, draft / _FILES)
            record = {relative: _digest(directory / relative) for relative in _relative(directory)}
            (draft / _RECORD).write_text(json.dumps(record, indent=1), encoding="utf-8")
            if not entry.exists():
                draft.rename(entry)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        _evict(folder, keep=entry)
    except OSError as error:
        env.log(0, f"the artifact is not kept in the cache {folder}: {error}")


def _folder() -> Path:
    return env.cache_dir() / "artifacts"


def _relative(directory: Path) -> list[str]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return sorted(str(path.relative_to(directory)) for path in files)


def _digest(path: Path) -> str:
    """Of a file's contents; empty when it cannot be read, which whoever needs it will report."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    except OSError:
        return ""
    return digest.hexdigest()


def _own_digest() -> str:
    """Of graphc's own sources, so that a changed graphc compiles afresh."""
    digest = hashlib.sha256()
    root = Path(__file__).resolve().parent
    for path in sorted(_walk(root)):
        digest.update(f"{path.relative_to(root)}\0{_digest(path)}\0".encode())
    return digest.hexdigest()


def _walk(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_dir():  # follows graphc/passes and the other links to the top-level folders
            yield from _walk(path)
        elif path.suffix in _SOURCES:
            yield path


def _evict(folder: Path, keep: Path) -> None:
    """Remove the entries used longest ago until the rest fits the limit."""
    records = [path / _RECORD for path in folder.iterdir() if path.name[0] != "."]
    used = sorted((r for r in records if r.exists()), key=lambda r: r.stat().st_mtime_ns)
    sizes = {r: sum(p.stat().st_size for p in r.parent.rglob("*") if p.is_file()) for r in used}
    total, limit = sum(sizes.values()), env.cache_bytes()
    for record in used:
        if total <= limit:
            return
        if record.parent != keep or len(used) == 1 or sizes[record] > limit:
            _remove(record.parent)
            total -= sizes[record]


def _sweep(folder: Path) -> None:
    """Remove what killed processes left unfinished."""
    for path in folder.glob(f"{_UNFINISHED}*"):
        if time.time() - path.stat().st_mtime > _STALE_SECONDS:
            shutil.rmtree(path, ignore_errors=True)


def _remove(entry: Path) -> None:
    """Take an entry out of sight at once, then delete it."""
    grave = entry.with_name(f"{_UNFINISHED}{os.getpid()}-{entry.name}")
    try:
        entry.rename(grave)
    except FileNotFoundError:
        return  # another process was faster
    shutil.rmtree(grave, ignore_errors=True)


def _clear(directory: Path) -> None:
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
