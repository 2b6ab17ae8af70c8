"""ONNX tensors -> numpy arrays: in the model file, in external files (memory-mapped), or inline.

External files are untrusted: their paths stay inside the model's folder with symbolic links
resolved, and offsets and lengths are checked against the file before they are used.
"""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
from onnx import TensorProto, numpy_helper

from graphc.errors import ModelError, UnsupportedError
from graphc.frontend.onnx import narrow
from graphc.frontend.onnx.symbols import MAX_ELEMENTS
from graphc.frontend.onnx.values import DTYPES, dtype_name, numpy_dtype
from graphc.frontend.onnx.wire import Extent


class TensorReader:
    """Reads the tensors of one model; `file` is the model file's bytes, memory-mapped."""

    def __init__(self, path: Path, file: np.ndarray) -> None:
        self._path = path
        self._folder = path.parent.resolve()
        self._file = file
        self._maps: dict[Path, np.ndarray] = {}

    def read(self, tensor: TensorProto, extent: Extent | None = None) -> np.ndarray:
        """The values; a view of a file wherever the tensor lies in one."""
        name = tensor.name or "(unnamed)"
        small = narrow.TYPES.get(tensor.data_type)
        if tensor.data_type not in DTYPES and small is None:
            raise UnsupportedError(
                f"tensor {name}: element type {dtype_name(tensor.data_type)} is not compiled: "
                f"graphc has {', '.join(DTYPES.values())}"
            )
        shape = tuple(tensor.dims)
        count = _count(name, shape)
        if small is not None:
            return self._narrow(tensor, name, small, count, extent).reshape(shape)
        dtype = numpy_dtype(DTYPES[tensor.data_type])
        if tensor.data_location == TensorProto.EXTERNAL:
            return self._external(tensor, name, dtype, count).reshape(shape)
        if extent is not None:
            data = self._file[extent.start : extent.start + extent.length]
            return _view(name, data, dtype, count).reshape(shape)
        if tensor.HasField("raw_data"):
            return _view(name, np.frombuffer(tensor.raw_data, "uint8"), dtype, count).reshape(shape)
        return _typed(tensor, name, dtype, count).reshape(shape)

    def _narrow(
        self,
        tensor: TensorProto,
        name: str,
        small: narrow.Narrow,
        count: int,
        extent: Extent | None,
    ) -> np.ndarray:
        """Values of a type below 8 bits, or 8-bit floats, one to an element of its carrier."""
        size, byte = -(-count * small.bits // 8), np.dtype("uint8")
        if tensor.data_location == TensorProto.EXTERNAL:
            data = self._external(tensor, name, byte, size)
        elif extent is not None:
            part = self._file[extent.start : extent.start + extent.length]
            data = _view(name, part, byte, size)
        elif tensor.HasField("raw_data"):
            data = _view(name, np.frombuffer(tensor.raw_data, "uint8"), byte, size)
        else:
            words = np.array(tensor.int32_data, "int64")
            if words.size != size:
                raise ModelError(f"tensor {name}: {words.size} values, its shape needs {size}")
            data = words.astype("uint8")
        return narrow.unpack(data, small, count)

    def _external(self, tensor: TensorProto, name: str, dtype: np.dtype, count: int) -> np.ndarray:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        where = f"tensor {name}: external data {location[:80]!r}"
        data = self._map(location, where)
        needed = count * dtype.itemsize
        offset = _number(entries.get("offset", "0"), where, "offset")
        length = _number(entries.get("length", str(needed)), where, "length")
        if length != needed:
            raise ModelError(f"{where} has length {length}, the tensor needs {needed} bytes")
        if offset + length > data.size:
            raise ModelError(
                f"{where} is too short: bytes {offset} to {offset + length} are needed, "
                f"the file has {data.size}"
            )
        return _view(name, data[offset : offset + length], dtype, count)

    def _map(self, location: str, where: str) -> np.ndarray:
        if not location or "\0" in location:
            raise ModelError(f"{where}: the file name is empty or not a name")
        try:
            path = (self._folder / location).resolve()
        except (OSError, RuntimeError) as error:
            raise ModelError(f"{where} cannot be found: {error}") from error
        if path in self._maps:
            return self._maps[path]
        if not path.is_relative_to(self._folder):
            raise ModelError(
                f"{where} lies outside the model's folder {self._folder}: copy it into the folder"
            )
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                raise ModelError(f"{where} is not a file")
            self._maps[path] = map_file(path, status.st_size)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ModelError(f"{where} cannot be read from {self._folder}: {reason}") from error
        return self._maps[path]


def map_file(path: Path, size: int) -> np.ndarray:
    """The bytes of a file, read when touched."""
    if size == 0:
        return np.empty(0, "uint8")
    return np.asarray(np.memmap(path, dtype="uint8", mode="r"))


def _view(name: str, data: np.ndarray, dtype: np.dtype, count: int) -> np.ndarray:
    if data.size != count * dtype.itemsize:
        raise ModelError(
            f"tensor {name}: {data.size} bytes of data, its shape and type need "
            f"{count * dtype.itemsize}"
        )
    return np.frombuffer(data, dtype=dtype) if count else np.empty(0, dtype)


def _typed(tensor: TensorProto, name: str, dtype: np.dtype, count: int) -> np.ndarray:
    try:
        values = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OverflowError, NotImplementedError) as error:
        raise ModelError(f"tensor {name}: its data does not fit its type: {error}") from error
    if values.size != count or values.dtype != dtype:
        raise ModelError(f"tensor {name}: {values.size} values, its shape needs {count}")
    return np.ascontiguousarray(values)


def _count(name: str, shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        if extent < 0:
            raise ModelError(f"tensor {name}: shape {list(shape)} has a negative dimension")
        count *= extent
    if count > MAX_ELEMENTS or len(shape) > 32:
        raise ModelError(f"tensor {name}: shape {list(shape)} is too large")
    return count


def _number(text: str, where: str, what: str) -> int:
    if not text.isdecimal() or not text.isascii() or len(text) > 18:
        raise ModelError(f"{where}: {what} {text[:40]!r} is not a number of bytes")
    return int(text)
