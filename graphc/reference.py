"""What an artifact is compared with: ONNX Runtime, or torch for what was exported from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from graphc.errors import ModelError

# What ONNX Runtime raises; its classes share no base below Exception.
_FAULTS: Final[tuple[type[Exception], ...]] = (
    RuntimeError,
    ValueError,
    *(
        kind
        for kind in vars(ort_errors).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ),
)

onnxruntime.disable_telemetry_events()

_NUMPY_TYPES: Final = {
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(bool)": "bool",
}


class Refused(ModelError):
    """The reference does not run this model, or not with these inputs."""


@dataclass(frozen=True)
class FeedPort:
    """An input of the reference; a dimension that is not fixed is a text."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


_NUMPY: Final = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int32)": "int32",
    "tensor(bool)": "bool",
}


class Reference:
    """A session; `observe` names inner values that `run` returns too."""

    kind = "onnxruntime"

    def __init__(
        self, path: Path, threads: int, observe: Sequence[str] = (), data: bytes | None = None
    ) -> None:
        """`data` is run instead of the file's own bytes; weights outside lie beside the file."""
        self.path = path
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        if data is not None:
            options.add_session_config_entry(
                "session.model_external_initializers_file_folder_path", str(path.parent)
            )
        elif observe:
            data = _observed(path, observe, options)
        try:
            self._session = onnxruntime.InferenceSession(
                data or str(path),
                options,
                providers=["CPUExecutionProvider"],
            )
        except _FAULTS as error:
            raise Refused(f"{path}: onnxruntime cannot load it: {_brief(error)}") from error

    @property
    def ports(self) -> tuple[FeedPort, ...]:
        """The inputs as the model declares them."""
        return tuple(
            FeedPort(
                port.name,
                _NUMPY.get(port.type, "int64"),
                tuple(e if isinstance(e, int) else str(e) for e in port.shape),
            )
            for port in self._session.get_inputs()
        )

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs, in order, the observed ones last."""
        return [output.name for output in self._session.get_outputs()]

    @property
    def types(self) -> dict[str, str]:
        """ONNX Runtime's type of each output, such as `tensor(float)`."""
        return {output.name: output.type for output in self._session.get_outputs()}

    def completed(
        self, feeds: Mapping[str, npt.NDArray[np.generic]], name: str, value: bool
    ) -> dict[str, npt.NDArray[np.generic]]:
        """The inputs with the choice `name` and, empty, those that it leaves unread."""
        inputs = self._session.get_inputs()
        sizes = {
            dim: size
            for item in inputs
            if item.name in feeds
            for dim, size in zip(item.shape, feeds[item.name].shape, strict=True)
        }
        given = dict(feeds)
        for item in inputs:
            if item.name == name:
                given[name] = np.full([1] * len(item.shape), value)
            elif item.name not in given:
                shape = [d if isinstance(d, int) else sizes.get(d, 0) for d in item.shape]
                given[item.name] = np.zeros(shape, _NUMPY_TYPES.get(item.type, "float32"))
        return given

    def run(
        self, feeds: Mapping[str, npt.NDArray[np.generic]]
    ) -> dict[str, npt.NDArray[np.generic]]:
        """All outputs by name."""
        try:
            values = self._session.run(None, dict(feeds))
        except _FAULTS as error:
            raise Refused(f"{self.path}: onnxruntime cannot run it: {_brief(error)}") from error
        return dict(zip(self.outputs, (np.asarray(v) for v in values), strict=True))


class Eager(Protocol):
    """What runs a model as it is: ONNX Runtime, or torch where the model came from it."""

    kind: str
    path: Path

    @property
    def ports(self) -> tuple[FeedPort, ...]: ...

    def run(
        self, feeds: Mapping[str, npt.NDArray[np.generic]]
    ) -> dict[str, npt.NDArray[np.generic]]: ...


def open_reference(path: Path, threads: int) -> Eager:
    """The reference for a model of this kind."""
    if path.is_dir() or path.suffix in (".pt2", ".gguf"):
        from graphc.torch_reference import TorchReference

        return TorchReference(path, threads)
    return Reference(path, threads)


# Operators that turn floats into integers of a few bits while the model runs.
_QUANTISERS: Final = frozenset(
    {
        "DynamicQuantizeLinear",
        "DynamicQuantizeMatMul",
        "DynamicQuantizeLSTM",
        "QAttention",
        "QuantizeLinear",
    }
)


def _has_few_bits(folder: Path) -> bool:
    from graphc.frontend import packed_folder

    return packed_folder.packing_of(folder) is not None


def _takes_bytes(node: onnx.NodeProto) -> bool:
    """accuracy_level 4: products with weights of few bits take activations of 8."""
    return any(a.name == "accuracy_level" and a.i == 4 for a in node.attribute)


def quantises_activations(path: Path) -> bool:
    """Whether the model rounds activations to a few bits.

    Its outputs are then steps of its inputs: a difference in the last place of a float can move a
    value by a whole step of 1/255 of its range, here as between two settings of ONNX Runtime.
    """
    if path.suffix == ".gguf" or (path.is_dir() and _has_few_bits(path)):
        return True  # its products take activations of 8 bits
    if path.suffix != ".onnx":
        return False
    from graphc.frontend.onnx.reader import structure

    pending = list(structure(path).graph.node)
    while pending:
        node = pending.pop()
        if node.op_type in _QUANTISERS or _takes_bytes(node):
            return True
        for attribute in node.attribute:
            pending += attribute.g.node
    return False


def _observed(path: Path, names: Sequence[str], options: Any) -> bytes:
    """The model's bytes with more outputs; onnxruntime infers their types."""
    model = onnx.load(str(path), load_external_data=False)
    known = {output.name for output in model.graph.output}
    for name in names:
        if name not in known:
            model.graph.output.add().name = name
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(path.parent)
    )
    serialized: bytes = model.SerializeToString()
    return serialized


def _brief(error: Exception) -> str:
    """The first line of a message that may run over many."""
    return str(error).strip().partition("\n")[0][:300] or type(error).__name__
