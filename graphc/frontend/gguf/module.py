"""The module that a GGUF file holds the weights of, built by transformers from its metadata.

transformers knows which architecture the metadata mean, how the tensors are called in it and how
rows were moved when the file was written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphc.errors import ConfigError, ModelError, UnsupportedError
from graphc.frontend import huggingface
from graphc.frontend.gguf.reader import GgufFile
from graphc.frontend.gguf.tensors import rearranged, weight
from graphc.frontend.packed import Weight, empty, fill
from graphc.frontend.torch_export import require_torch

if TYPE_CHECKING:
    import torch

_ARCHITECTURE = "general.architecture"


@dataclass(frozen=True)
class Built:
    """`weights` by the module's parameter names."""

    module: torch.nn.Module
    weights: Mapping[str, Weight]


def build(file: GgufFile, *, packed: bool = True) -> Built:
    """The module in evaluation mode; `packed`: weights of few bits are left unread."""
    path = file.path
    require_torch(str(path))
    _check(file)
    transformers, ggml = _libraries(path)
    record, config = _config(transformers, ggml, path)
    module = empty(_class(transformers, config, path), config, path)
    weights = dict(_weights(file, ggml, module, record))
    return Built(fill(module, weights, path, packed), weights)


def _check(file: GgufFile) -> None:
    """What would make transformers build something endless."""
    architecture = file.value(_ARCHITECTURE, str)
    if not architecture:
        raise ModelError(f"{file.path}: it has no {_ARCHITECTURE}: it is no model")
    blocks = file.value(f"{architecture}.block_count", int, 0)
    if not 0 <= blocks <= len(file.tensors):
        raise ModelError(
            f"{file.path}: {architecture}.block_count is {blocks}, with {len(file.tensors)} tensors"
        )
    shard = file.value("split.count", int, 0)
    if shard > 1:
        raise UnsupportedError(
            f"{file.path}: it is one of {shard} parts: join them with llama-gguf-split --merge"
        )


def _libraries(path: Path) -> tuple[Any, Any]:
    transformers = huggingface.require_transformers(path)
    try:
        import accelerate  # noqa: F401
        import gguf  # noqa: F401
        from transformers import modeling_gguf_pytorch_utils as ggml
    except ImportError as error:
        raise ConfigError(
            f"{path}: building it needs {error.name}: pip install 'graphc[torch]'"
        ) from error
    return transformers, ggml


def _config(transformers: Any, ggml: Any, path: Path) -> tuple[dict[str, Any], Any]:
    """The metadata as a configuration: plain, and of the class that it names."""
    try:
        record = ggml.load_gguf_checkpoint(path, return_tensors=False)["config"]
        kinds = transformers.models.auto.configuration_auto.CONFIG_MAPPING
        config = kinds[record["model_type"]].from_dict(dict(record))
    except Exception as error:
        raise UnsupportedError(
            f"{path}: transformers {transformers.__version__} does not know how to build it: "
            f"{huggingface.brief(error)}"
        ) from error
    config.use_cache = False
    return record, config


def _class(transformers: Any, config: Any, path: Path) -> Any:
    """The class that the metadata name, or the usual one for text."""
    if getattr(config, "architectures", None):
        return huggingface.class_of(transformers, config, path)
    if getattr(config, "is_encoder_decoder", False):
        return transformers.AutoModelForSeq2SeqLM
    return transformers.AutoModelForCausalLM


def _weights(
    file: GgufFile, ggml: Any, module: Any, record: Mapping[str, Any]
) -> Iterator[tuple[str, Weight]]:
    """The module's parameters from the file's tensors, elements moved as transformers does."""
    architecture = file.value(_ARCHITECTURE, str)
    kind = ggml.TENSOR_PROCESSORS.get(architecture, ggml.TensorProcessor)
    processor = kind(config=dict(record))
    try:
        names = ggml.get_gguf_hf_weights_map(module, processor)
    except Exception as error:
        raise UnsupportedError(
            f"{file.path}: transformers does not know its tensors: {huggingface.brief(error)}"
        ) from error
    merged: dict[str, Any] = {}
    for tensor in file.tensors.values():
        own = weight(file, tensor)
        try:
            name, how = _processed(processor, tensor.name, own, names, merged)
            if name in names:
                yield names[name], rearranged(own, how)
        except (ModelError, ConfigError):
            raise
        except Exception as error:
            raise ModelError(
                f"{file.path}: tensor {tensor.name} of shape {list(tensor.shape)} does not fit: "
                f"{huggingface.brief(error)}"
            ) from error
    for name, value in merged.items():
        array = value.numpy()
        yield name, Weight(array.shape, functools.partial(np.asarray, array))


def _processed(
    processor: Any, name: str, own: Weight, names: Mapping[str, str], merged: dict[str, Any]
) -> tuple[str | None, Callable[[np.ndarray], np.ndarray]]:
    """The tensor's name behind transformers' processing, and the processing as a function.

    Without a name, the processing has put the values among `merged`: several tensors in one.
    """

    def run(values: np.ndarray, into: dict[str, Any]) -> Any:
        return processor.process(
            weights=values,
            name=name,
            tensor_key_mapping=names,
            parsed_parameters={"tensors": into},
        )

    shape_only = np.broadcast_to(np.float32(0), own.shape)
    if run(shape_only, {}).name is None:
        run(own.read(), merged)
        return None, lambda values: values
    found = run(shape_only, {}).name
    return found, lambda values: np.asarray(run(values, {}).weights)
