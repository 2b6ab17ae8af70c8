"""The C interface of graphc.h through ctypes: a library, and contexts with their life cycles."""

from __future__ import annotations

import _ctypes
import ctypes
import itertools
import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt

from graphc.errors import ArtifactError, CacheExhaustedError, GraphcError, InputError
from graphc.manifest import FunctionInfo, PortInfo

_ALIGNMENT: Final = 64
_LOADS: Final = itertools.count(1)
_CPU: Final = 1
# DLPack's type codes by what a dtype's name starts with, longest first.
_CODES: Final = (
    ("float8_e4m3fn", 10),
    ("float8_e5m2", 12),
    ("bfloat", 4),
    ("bool", 6),
    ("uint", 1),
    ("int", 0),
    ("float", 2),
)
_INPUT, _USE, _ARTIFACT, _FULL = 1, 2, 3, 7  # of gc_status


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class ErrorRecord(ctypes.Structure):
    """gc_error."""

    _fields_ = (("code", ctypes.c_int32), ("message", ctypes.c_char * 1020))


class _Options(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("threads", ctypes.c_int32),
        ("spin_us", ctypes.c_int32),
        ("cpus", ctypes.POINTER(ctypes.c_int32)),
        ("n_cpus", ctypes.c_int32),
        ("check_weights", ctypes.c_int32),
        ("weights", ctypes.c_char_p),
    )


class _KernelTime(ctypes.Structure):
    _fields_ = (
        ("kernel", ctypes.c_char_p),
        ("calls", ctypes.c_int64),
        ("nanoseconds", ctypes.c_int64),
        ("fastest", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
        ("flops", ctypes.c_int64),
    )


@dataclass(frozen=True)
class KernelTime:
    """One kernel call of a function, over all runs since Context.profile.

    `bytes` are those of all its tensors; `flops` its arithmetic operations, None when not known.
    """

    kernel: str
    calls: int
    nanoseconds: int
    fastest: int
    bytes: int
    flops: int | None


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype of that name; those that NumPy lacks come from ml_dtypes."""
    if name.startswith(("bfloat", "float8")):
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype
    return np.dtype(name)


class Library:
    """libmodel.so with its weights mapped; `close` unloads it when its last context is gone."""

    def __init__(
        self, path: Path, directory: Path, threads: int, affinity: tuple[int, ...]
    ) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            dll = ctypes.CDLL(_fresh_spelling(descriptor))
            _declare(dll)
        except (OSError, AttributeError) as error:
            os.close(descriptor)
            raise ArtifactError(f"{path} cannot be loaded: {error}") from error
        self.dll = dll
        self._unload = weakref.finalize(self, _unload, dll._handle, descriptor)
        self._unload.atexit = False  # the process ends anyway, and threads may still be running
        cpus = (ctypes.c_int32 * len(affinity))(*affinity)
        options = _Options(
            size=ctypes.sizeof(_Options), threads=threads, cpus=cpus, n_cpus=len(affinity)
        )
        error_record = ErrorRecord()
        self._model = dll.gc_open(
            os.fsencode(directory), ctypes.byref(options), ctypes.byref(error_record)
        )
        if not self._model:
            raise_recorded(error_record)
        self._closer = weakref.finalize(self, dll.gc_close, self._model)
        self._closer.atexit = False

    def context(self) -> Context:
        """A new context; raises GraphcError when threads or memory cannot be had."""
        return Context(self)

    def close(self) -> None:
        """Give the model up; contexts that still exist keep it alive."""
        self._closer()

    @property
    def model(self) -> int:
        """The gc_model, for gc_context_create."""
        return int(self._model)


class Context:
    """A gc_context: one thread at a time, which its lock sees to."""

    def __init__(self, library: Library) -> None:
        self.process = os.getpid()
        self.destroyed = False
        self._library = library  # keeps the code loaded
        self._lock = threading.Lock()
        error = ErrorRecord()
        self._handle = library.dll.gc_context_create(library.model, ctypes.byref(error))
        if not self._handle:
            raise_recorded(error)
        # Holds the library, so that a collected cycle cannot unload the code first.
        self._destroy = weakref.finalize(self, _destroy, library, self._handle)
        self._destroy.atexit = False

    @property
    def handle(self) -> int:
        """The gc_context."""
        return int(self._handle)

    def destroy(self) -> None:
        """End its threads and free its memory, after the run that is in progress."""
        with self._lock:
            self.destroyed = True
            self._destroy()

    def infer_shapes(
        self, info: FunctionInfo, shapes: Sequence[Sequence[int]]
    ) -> list[tuple[int, ...]]:
        """Shapes of the outputs for inputs of these shapes."""
        inputs = (_Tensor * len(shapes))()
        keep = [
            _describe(tensor, port, shape, None)
            for tensor, port, shape in zip(inputs, info.inputs, shapes, strict=True)
        ]
        with self._lock:
            result = self._infer(info, inputs)
        del keep
        return result

    def run(self, info: FunctionInfo, arrays: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """One run on inputs in the function's order; the outputs are new arrays.

        An output whose shape becomes known in mid-run is computed in the context's memory.
        """
        inputs = (_Tensor * len(arrays))()
        keep = []
        for tensor, port, array in zip(inputs, info.inputs, arrays, strict=True):
            strides = [stride // array.itemsize for stride in array.strides]
            keep.append(_describe(tensor, port, array.shape, strides))
            tensor.data = array.ctypes.data
        with self._lock:
            shapes = self._infer(info, inputs)
            outputs = (_Tensor * len(shapes))()
            results: list[npt.NDArray[Any] | None] = []
            for tensor, port, shape in zip(outputs, info.outputs, shapes, strict=True):
                late = any(extent < 0 for extent in shape)
                results.append(None if late else empty_aligned(shape, numpy_dtype(port.dtype)))
                keep.append(_describe(tensor, port, shape, None))
                tensor.data = None if results[-1] is None else results[-1].ctypes.data
            self._call("gc_run", info, inputs, outputs)
            return [
                _copied(tensor, port) if result is None else result
                for tensor, port, result in zip(outputs, info.outputs, results, strict=True)
            ]

    def profile(self) -> None:
        """Time every kernel of later runs, from zero."""
        error = ErrorRecord()
        with self._lock:
            if self._library.dll.gc_profile(self._handle, ctypes.byref(error)):
                raise_recorded(error)

    def kernel_times(self, info: FunctionInfo) -> list[KernelTime]:
        """What was timed since `profile`, in run order."""
        with self._lock:
            read, name = self._library.dll.gc_kernel_times, info.name.encode()
            rows = (_KernelTime * read(self._handle, name, None, 0))()
            read(self._handle, name, rows, len(rows))
        return [
            KernelTime(
                row.kernel.decode(),
                row.calls,
                row.nanoseconds,
                row.fastest,
                row.bytes,
                None if row.flops < 0 else row.flops,
            )
            for row in rows
        ]

    def _infer(self, info: FunctionInfo, inputs: ctypes.Array[_Tensor]) -> list[tuple[int, ...]]:
        outputs = (_Tensor * len(info.outputs))()
        self._call("gc_infer_shapes", info, inputs, outputs)
        return [tuple(tensor.shape[i] for i in range(tensor.ndim)) for tensor in outputs]

    def _call(
        self,
        name: str,
        info: FunctionInfo,
        inputs: ctypes.Array[_Tensor],
        outputs: ctypes.Array[_Tensor],
    ) -> None:
        if self.destroyed:
            raise GraphcError("the module was closed by another thread: load it again")
        error = ErrorRecord()
        function = getattr(self._library.dll, name)
        arguments = (info.name.encode(), inputs, len(inputs), outputs, len(outputs))
        if function(self._handle, *arguments, ctypes.byref(error)):
            raise_recorded(error)


def empty_aligned(shape: Sequence[int], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """An uninitialised array whose memory is aligned for the kernels."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def _copied(tensor: _Tensor, port: PortInfo) -> npt.NDArray[Any]:
    """A new array of what lies in the context's memory, which is compact."""
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    result = empty_aligned(shape, numpy_dtype(port.dtype))
    if result.nbytes:
        ctypes.memmove(result.ctypes.data, tensor.data, result.nbytes)
    return result


def _describe(
    tensor: _Tensor, port: PortInfo, shape: Sequence[int], strides: Sequence[int] | None
) -> tuple[object, ...]:
    """Fill a DLTensor; what it points to is returned and must be kept."""
    rank = len(shape)
    sizes = (ctypes.c_int64 * rank)(*shape)
    steps = None if strides is None else (ctypes.c_int64 * rank)(*strides)
    tensor.device_type = _CPU
    tensor.ndim = rank
    tensor.code = next(code for prefix, code in _CODES if port.dtype.startswith(prefix))
    tensor.bits = numpy_dtype(port.dtype).itemsize * 8
    tensor.lanes = 1
    tensor.shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
    if steps is not None:
        tensor.strides = ctypes.cast(steps, ctypes.POINTER(ctypes.c_int64))
    return sizes, steps


def _declare(dll: ctypes.CDLL) -> None:
    pointer, error, tensors = ctypes.c_void_p, ctypes.POINTER(ErrorRecord), ctypes.POINTER(_Tensor)
    dll.gc_open.restype = pointer
    dll.gc_open.argtypes = (ctypes.c_char_p, ctypes.POINTER(_Options), error)
    dll.gc_close.restype = None
    dll.gc_close.argtypes = (pointer,)
    dll.gc_context_create.restype = pointer
    dll.gc_context_create.argtypes = (pointer, error)
    dll.gc_context_destroy.restype = None
    dll.gc_context_destroy.argtypes = (pointer,)
    dll.gc_profile.restype = ctypes.c_int
    dll.gc_profile.argtypes = (pointer, error)
    dll.gc_kernel_times.restype = ctypes.c_int32
    dll.gc_kernel_times.argtypes = (
        pointer,
        ctypes.c_char_p,
        ctypes.POINTER(_KernelTime),
        ctypes.c_int32,
    )
    for function in (dll.gc_run, dll.gc_infer_shapes):
        function.restype = ctypes.c_int
        function.argtypes = (
            pointer,
            ctypes.c_char_p,
            tensors,
            ctypes.c_int32,
            tensors,
            ctypes.c_int32,
            error,
        )


def _fresh_spelling(descriptor: int) -> str:
    """A path to an open file that this process has not used before.

    The dynamic loader takes a name that it knows for the file it has loaded under it, even when
    another file lies there now. So the load's number is spelled out in "/" (0) and "/." (1).
    """
    bits = bin(next(_LOADS))[2:]
    return f"/proc/self/fd{''.join('/.' if bit == '1' else '/' for bit in bits)}/{descriptor}"


def _destroy(library: Library, handle: int) -> None:
    library.dll.gc_context_destroy(handle)


def _unload(handle: int, descriptor: int) -> None:
    _ctypes.dlclose(handle)
    os.close(descriptor)


def raise_recorded(error: ErrorRecord) -> NoReturn:
    """Raise the exception that stands for a failed call's gc_error."""
    kinds = {
        _INPUT: InputError,
        _USE: InputError,
        _ARTIFACT: ArtifactError,
        _FULL: CacheExhaustedError,
    }
    raise kinds.get(error.code, GraphcError)(error.message.decode("utf-8", "replace"))
