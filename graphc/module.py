"""Runs an artifact from Python: ctypes and NumPy only, neither TVM nor ONNX.

Every calling thread has a context of its own (activations and worker threads); the weights are
mapped once per process, and shared with other processes.
"""

from __future__ import annotations

import difflib
import os
import platform
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from graphc import artifact
from graphc.artifact import FunctionInfo, Manifest, PortInfo
from graphc.errors import ArtifactError, GraphcError, InputError
from graphc.native import Context, KernelTime, Library, numpy_dtype

Array = npt.NDArray[Any]
_MAX_THREADS: Final = 1024


def load(directory: str | Path, threads: int | None = None, affinity: Sequence[int] = ()) -> Module:
    """Open an artifact.

    `threads` are those of each calling thread's context, itself included (default: the physical
    cores that this process may use); worker i is pinned to affinity[i % len(affinity)]. Raises
    ArtifactError when the artifact is missing, damaged or made for another machine.
    """
    directory = Path(directory)
    manifest, library = open_library(directory, threads, affinity)
    return Module(directory, manifest, library)


def open_library(
    directory: Path, threads: int | None = None, affinity: Sequence[int] = ()
) -> tuple[Manifest, Library]:
    """The checked manifest and the loaded code of an artifact; see `load`."""
    if threads is not None and not 1 <= threads <= _MAX_THREADS:
        raise InputError(f"threads is {threads}, expected 1 to {_MAX_THREADS}")
    manifest = artifact.read_manifest(directory)
    machine = platform.machine()
    if manifest.target.machine != machine:
        raise ArtifactError(
            f"{directory} was compiled for {manifest.target.machine}, this machine is {machine}: "
            f"compile the model for it"
        )
    artifact.check_loadable(directory, manifest)
    library = Library(directory / artifact.LIBRARY, directory, threads or 0, tuple(affinity))
    return manifest, library


class Module:
    """A loaded artifact; callable, usable from many threads at once, and a context manager."""

    def __init__(self, directory: Path, manifest: Manifest, library: Library) -> None:
        self.directory = directory
        self.manifest = manifest
        self.functions: Mapping[str, FunctionInfo] = MappingProxyType(
            {function.name: function for function in manifest.functions}
        )
        self._library: Library | None = library
        self._local = threading.local()
        self._contexts: weakref.WeakSet[Context] = weakref.WeakSet()
        self._lock = threading.Lock()

    @property
    def inputs(self) -> tuple[PortInfo, ...]:
        """Inputs of the function `main`, or of the only one."""
        return self._function(None).inputs

    @property
    def outputs(self) -> tuple[PortInfo, ...]:
        """Outputs of the function `main`, or of the only one."""
        return self._function(None).outputs

    def __call__(self, **inputs: Any) -> dict[str, Array]:
        """Run `main` on arrays (NumPy, or anything with DLPack) given by input name."""
        info = self._function(None)
        names = [port.name for port in info.outputs]
        return dict(zip(names, self._run(info, inputs), strict=True))

    def run(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        function: str | None = None,
    ) -> list[Array]:
        """The named outputs (None: all) of one run, in that order: ONNX Runtime's call."""
        info = self._function(function)
        names = [port.name for port in info.outputs]
        wanted = names if output_names is None else list(output_names)
        for name in wanted:
            if name not in names:
                raise InputError(f"no output {name!r}: {_suggest(name, names)}")
        outputs = dict(zip(names, self._run(info, feeds), strict=True))
        return [outputs[name] for name in wanted]

    def infer_shapes(
        self, shapes: Mapping[str, Sequence[int]], function: str | None = None
    ) -> dict[str, tuple[int, ...]]:
        """Shapes of the outputs for inputs of the given shapes; nothing is computed.

        A dimension that depends on the values of the inputs is -1.
        """
        info = self._function(function)
        _check_names(info, shapes)
        given = [tuple(int(dim) for dim in shapes[port.name]) for port in info.inputs]
        for port, shape in zip(info.inputs, given, strict=True):
            if any(not 0 <= dim < 1 << 63 for dim in shape):
                raise InputError(f"input {port.name!r}: shape {shape} has an impossible dimension")
        result = self._context().infer_shapes(info, given)
        return {port.name: shape for port, shape in zip(info.outputs, result, strict=True)}

    def example_inputs(
        self, dims: Mapping[str, int] | None = None, function: str | None = None
    ) -> dict[str, Array]:
        """Made-up inputs, the same as those of example.c; `dims` not given are 8 within bounds."""
        info = self._function(function)
        sizes = {d.name: max(d.lower, min(8, 8 if d.upper is None else d.upper)) for d in info.dims}
        sizes.update(dims or {})
        return {port.name: _fill(port, sizes) for port in info.inputs}

    def profile(self, function: str | None = None) -> Callable[[], list[KernelTime]]:
        """Time every kernel of this thread's later runs; what is returned reads the times."""
        info, context = self._function(function), self._context()
        context.profile()
        return lambda: context.kernel_times(info)

    def close(self) -> None:
        """Free threads and memory, waiting for runs in progress. Later calls fail."""
        with self._lock:
            library, self._library = self._library, None
            contexts = list(self._contexts)
        for context in contexts:
            context.destroy()
        self._local = threading.local()
        if library is not None:
            library.close()

    def __enter__(self) -> Module:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        ports = ", ".join(f"{p.name}: {p.dtype}{list(p.shape)}" for p in self.inputs)
        return f"<graphc module {self.directory} ({ports})>"

    def _function(self, name: str | None) -> FunctionInfo:
        if name is None:
            name = "main" if "main" in self.functions else next(iter(self.functions))
        if name not in self.functions:
            raise InputError(f"no function {name!r}: {_suggest(name, self.functions)}")
        return self.functions[name]

    def _context(self) -> Context:
        context: Context | None = getattr(self._local, "context", None)
        if context is not None and context.process == os.getpid() and not context.destroyed:
            return context
        with self._lock:
            if self._library is None:
                raise GraphcError(f"{self.directory} is closed: load it again")
            context = self._library.context()
            self._contexts.add(context)
        self._local.context = context
        return context

    def _run(self, info: FunctionInfo, feeds: Mapping[str, Any]) -> list[Array]:
        _check_names(info, feeds)
        arrays = [_as_array(port, feeds[port.name]) for port in info.inputs]
        return self._context().run(info, arrays)


def _check_names(info: FunctionInfo, feeds: Mapping[str, Any]) -> None:
    names = [port.name for port in info.inputs]
    unknown = [name for name in feeds if name not in names]
    missing = [name for name in names if name not in feeds]
    if unknown:
        free = missing or names
        raise InputError(f"no input {unknown[0]!r}: {_suggest(unknown[0], free)}")
    if missing:
        raise InputError(
            f"missing input{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}: "
            f"the model takes {', '.join(map(repr, names))}"
        )


def _suggest(name: str, names: Iterable[str]) -> str:
    known = list(names)
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there is {', '.join(map(repr, known))}"


def _as_array(port: PortInfo, value: Any) -> Array:
    """The value as a NumPy array over the same memory; InputError when it has no such form."""
    if isinstance(value, np.ndarray):
        array = value
    elif isinstance(value, np.generic):
        array = np.asarray(value)
    elif hasattr(value, "__dlpack__"):
        try:
            array = np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise InputError(
                f"input {port.name!r}: its DLPack memory cannot be read by NumPy ({error}); "
                "pass a detached CPU tensor or a NumPy array"
            ) from error
    else:
        raise InputError(
            f"input {port.name!r}: is a {type(value).__name__}, expected a NumPy array or a DLPack "
            f"tensor: np.asarray(value, {port.dtype!r})"
        )
    if array.dtype.name != port.dtype or not array.dtype.isnative:
        have = array.dtype.name if array.dtype.isnative else f"byte-swapped {array.dtype.name}"
        raise InputError(
            f"input {port.name!r}: dtype is {have}, expected {port.dtype}: "
            f"cast it with .astype({port.dtype!r})"
        )
    if any(stride % array.itemsize for stride in array.strides):
        return np.ascontiguousarray(array)  # a field of records: strides are not in elements
    return array


def _fill(port: PortInfo, sizes: Mapping[str, int]) -> Array:
    """graphc_fill.h in NumPy."""
    shape = []
    for dim in port.shape:
        if isinstance(dim, str) and dim not in sizes:
            raise InputError(f"input {port.name!r}: dimension {dim} is computed, give the array")
        shape.append(sizes[dim] if isinstance(dim, str) else dim)
    count = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.int64)
    if port.dtype.startswith(("float", "bfloat")):
        values: Array = (count * 37 % 64) / 64 - 0.5
    elif port.value_range is not None:
        low, high = port.value_range
        values = low + (count * 7 + 1) % (high - low + 1)
    else:
        values = np.ones_like(count)
    return values.astype(numpy_dtype(port.dtype)).reshape(shape)
