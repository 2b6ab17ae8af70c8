"""Runs models that are still on their way through the passes, and finds inputs to run them on.

Quantisation needs both: to learn ranges, to measure what it costs, and to prove the kernels.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from graphc import artifact, module, testing
from graphc.errors import ConfigError, InputError
from graphc.ir import Dim, Model
from graphc.passes.scheme import Feeds
from graphc.testing import Array

Assemble = Callable[[Model, artifact.Draft], None]
"""The stages of a compile from a quantised model to a complete artifact."""

_REPEATS: Final = 7
_BATCH: Final = 2
_LENGTH: Final = 24
_SETS: Final = 2
_WINDOW: Final = 256
_MOST_WINDOWS: Final = 32


@dataclass(frozen=True)
class Trial:
    """Compiles for the machine at hand into a folder that is gone afterwards."""

    assemble: Assemble
    threads: int

    def run(self, model: Model, data: Sequence[Feeds]) -> list[list[Array]]:
        """All outputs of each set of inputs."""
        with self._loaded(model) as loaded:
            return [_outputs(loaded, feeds) for feeds in data]

    def time(self, model: Model, data: Sequence[Feeds]) -> float:
        """Seconds for all sets of inputs together: the median of several runs."""
        with self._loaded(model) as loaded:
            for feeds in data:
                _outputs(loaded, feeds)
            runs = []
            for _ in range(_REPEATS):
                start = time.perf_counter()
                for feeds in data:
                    _outputs(loaded, feeds)
                runs.append(time.perf_counter() - start)
        return statistics.median(runs)

    @contextmanager
    def _loaded(self, model: Model) -> Iterator[module.Module]:
        with tempfile.TemporaryDirectory(prefix="graphc-trial-") as folder:
            path = Path(folder) / "trial.gc"
            with artifact.publish(path) as draft:
                self.assemble(model, draft)
            with module.load(path, threads=self.threads) as loaded:
                yield loaded


def _outputs(loaded: module.Module, feeds: Feeds) -> list[Array]:
    try:
        return loaded.run([port.name for port in loaded.outputs], dict(feeds))
    except InputError as error:
        raise ConfigError(
            f"the model does not take the inputs it is tried with: {error}\n"
            "give some with --calibration"
        ) from error


def inputs(model: Model, calibration: Path | None, source: Path | None = None) -> list[Feeds]:
    """The sets in a calibration file or folder; without one, two drawn at random.

    A .npz is one set; a folder holds .npz files, or one .npy for every input. A .txt is cut into
    windows of tokens, by the tokenizer of the model at `source`.
    """
    if calibration is None:
        return _drawn(model)
    if calibration.suffix == ".txt":
        return _from_text(model, calibration, source)
    if calibration.is_dir():
        sets = [_read(path) for path in sorted(calibration.glob("*.npz"))]
        if not sets:
            names = sorted(calibration.glob("*.npy"))
            sets = [{path.stem: _array(path) for path in names}] if names else []
    else:
        sets = [_read(calibration)]
    if not sets:
        raise ConfigError(f"calibration = {calibration}: no .npz and no .npy files in it")
    wanted = [port.name for port in model.signatures["main"].inputs]
    for feeds in sets:
        missing = [name for name in wanted if name not in feeds]
        if missing:
            raise ConfigError(f"calibration = {calibration}: no array for input {missing[0]!r}")
    return [{name: feeds[name] for name in wanted} for feeds in sets]


def _from_text(model: Model, calibration: Path, source: Path | None) -> list[Feeds]:
    """Windows of a text for the input that is tokens; other inputs of its shape are ones."""
    from graphc.frontend import companions

    data = {} if source is None else companions(source)
    if "tokenizer.json" not in data:
        raise ConfigError(
            f"calibration = {calibration}: the model has no tokenizer.json for a text"
        )
    from tokenizers import Tokenizer

    try:
        text = calibration.read_text(encoding="utf-8")
        tokenizer = Tokenizer.from_str(data["tokenizer.json"].decode())
    except (OSError, ValueError) as error:
        raise ConfigError(f"calibration = {calibration}: cannot be read: {error}") from error
    ids = np.array(tokenizer.encode(text, add_special_tokens=False).ids)
    ports = model.signatures["main"].inputs
    tokens = next((p.name for p in ports if p.value_range is not None and len(p.shape) == 2), None)
    windows = [ids[at : at + _WINDOW] for at in range(0, ids.size - _WINDOW + 1, _WINDOW)]
    if tokens is None or not windows or any(len(port.shape) != 2 for port in ports):
        raise ConfigError(
            f"calibration = {calibration}: expected a model of tokens [batch, length] and at least "
            f"{_WINDOW} tokens of text, there are {ids.size}"
        )
    return [
        {
            port.name: (window if port.name == tokens else np.ones_like(window))[None].astype(
                port.dtype
            )
            for port in ports
        }
        for window in windows[:_MOST_WINDOWS]
    ]


def _read(path: Path) -> Mapping[str, Array]:
    if path.suffix != ".npz":
        raise ConfigError(f"calibration = {path}: expected a .npz file, or a folder")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError) as error:
        raise ConfigError(f"calibration = {path}: cannot be read: {error}") from error


def _array(path: Path) -> Array:
    try:
        value: Array = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"calibration = {path}: cannot be read: {error}") from error
    return value


def _drawn(model: Model) -> list[Feeds]:
    signature = model.signatures["main"]
    leading = {str(port.shape[0]) for port in signature.inputs if len(port.shape) >= 2}
    sizes = {
        dim.name: _within(dim, _BATCH if dim.name in leading else _LENGTH) for dim in signature.dims
    }
    return [testing.random_inputs(signature.inputs, sizes, seed) for seed in range(_SETS)]


def _within(dim: Dim, value: int) -> int:
    value = max(value, dim.lower)
    return value if dim.upper is None else min(value, dim.upper)
