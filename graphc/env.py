"""Environment variables that graphc reads, in one typed table, and the debug log they control."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from graphc.errors import ConfigError

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def _level(text: str) -> int:
    if text not in {"0", "1", "2", "3", "4", "5"}:
        raise ValueError("a level from 0 to 5")
    return int(text)


def _switch(text: str) -> bool:
    if text not in {"0", "1"}:
        raise ValueError("0 or 1")
    return text == "1"


def _size(text: str) -> int:
    number = text.rstrip("kKmMgGtT")
    unit = text[len(number) :].lower()
    if not (number.isascii() and number.isdecimal()) or unit not in _UNITS:
        raise ValueError("a number of bytes such as 500M or 10G")
    return int(number) * _UNITS[unit]


def _folder(text: str) -> Path:
    path = Path(text).expanduser()
    if path.exists() and not path.is_dir():
        raise ValueError("a folder, not a file")
    return path


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    if base.startswith("/"):
        return Path(base) / "graphc"
    try:
        return Path.home() / ".cache" / "graphc"
    except RuntimeError as error:
        raise ConfigError("no home folder for the cache: set GRAPHC_CACHE to a folder") from error


T = TypeVar("T")


@dataclass(frozen=True)
class Knob(Generic[T]):
    """One variable: how its text is read, what holds when it is unset or empty, what it is for."""

    name: str
    parse: Callable[[str], T]
    default: Callable[[], T]
    meaning: str

    def read(self) -> T:
        """The value now; one that cannot be used is a ConfigError."""
        text = os.environ.get(self.name, "")
        if not text:
            return self.default()
        try:
            return self.parse(text)
        except ValueError as error:
            raise ConfigError(f"{self.name}={text!r} cannot be used: expected {error}") from error


def _none() -> None:
    return None


_DEBUG: Knob[int] = Knob(
    "GRAPHC_DEBUG",
    _level,
    lambda: 0,
    "1 stages, 2 hits, 3 schedules, 4 generated source, 5 IR after each pass",
)
_DUMP: Knob[Path | None] = Knob(
    "GRAPHC_DUMP", _folder, _none, "folder for every stage's IR and source"
)
_CACHE: Knob[Path] = Knob(
    "GRAPHC_CACHE", _folder, _default_cache, "folder of finished artifacts and of tools' caches"
)
_CACHE_BYTES: Knob[int] = Knob(
    "GRAPHC_CACHE_BYTES", _size, lambda: 10 << 30, "size limit of the artifacts in it, such as 10G"
)
_NO_CACHE: Knob[bool] = Knob(
    "GRAPHC_NO_CACHE", _switch, lambda: False, "1 compiles afresh and keeps nothing"
)
_CC: Knob[str | None] = Knob(
    "GRAPHC_CC", str, _none, "C compiler to link with instead of ziglang's"
)
_TARGETS: Knob[Path | None] = Knob(
    "GRAPHC_TARGETS", _folder, _none, "folder of more device files (*.toml)"
)
_TEST_MODELS: Knob[Path | None] = Knob(
    "GRAPHC_TEST_MODELS", _folder, _none, "folder where the tests keep real models"
)
_API_KEY: Knob[str | None] = Knob(
    "GRAPHC_API_KEY", str, _none, "what clients of graphc serve must send as their key"
)

KNOBS: dict[str, Knob[Any]] = {
    knob.name: knob
    for knob in (
        _DEBUG,
        _DUMP,
        _CACHE,
        _CACHE_BYTES,
        _NO_CACHE,
        _CC,
        _TARGETS,
        _TEST_MODELS,
        _API_KEY,
    )
}

debug = _DEBUG.read
dump = _DUMP.read
cache_dir = _CACHE.read
cache_bytes = _CACHE_BYTES.read
no_cache = _NO_CACHE.read
cc = _CC.read
targets_dir = _TARGETS.read
test_models = _TEST_MODELS.read
api_key = _API_KEY.read


def check() -> None:
    """Refuse variables that would do nothing: misspelt names, and values that cannot be used."""
    for name in sorted(os.environ):
        if not name.startswith("GRAPHC_"):
            continue
        if name not in KNOBS:
            near = difflib.get_close_matches(name, KNOBS, n=1, cutoff=0.0)
            raise ConfigError(f"unknown environment variable {name}: did you mean {near[0]}?")
        KNOBS[name].read()


def log(level: int, message: str) -> None:
    """Print to standard error when GRAPHC_DEBUG is at least `level`."""
    if debug() >= level:
        print(f"graphc: {message}", file=sys.stderr, flush=True)


def write_dump(name: str, text: str) -> None:
    """Write one stage's text into GRAPHC_DUMP, if that is set."""
    folder = dump()
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
