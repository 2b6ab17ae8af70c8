"""Reads input arrays from .npy files and writes outputs to .npz, without pickles or half files."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from graphc.errors import InputError
from graphc.testing import Array


def read(files: Mapping[str, Path]) -> dict[str, Array]:
    """Map each file; what is not a plain array is an InputError."""
    return {name: _array(name, path) for name, path in files.items()}


def _array(name: str, path: Path) -> Array:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"input {name}: {path} is not a .npy array: {error}") from error
    if not isinstance(array, np.ndarray):
        raise InputError(f"input {name}: {path} holds several arrays, expected one .npy array")
    return array


def write(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write all arrays under their names, at once or not at all."""
    handle, draft = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        # np.savez takes the names as keyword arguments: one called "file" would not do.
        with (
            os.fdopen(handle, "wb") as stream,
            zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED, allowZip64=True) as archive,
        ):
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
        Path(draft).chmod(0o666 & ~_umask())
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
