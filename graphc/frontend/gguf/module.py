"""The module that a GGUF file holds the weights of, built by transformers from its metadata.

transformers knows which architecture the metadata mean, how the tensors are called in it and how
rows were moved when the file was written. Weights that stay packed are not filled in: they are
memory that nobody has written to, while torch.export only looks at their shapes.
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
from graphc.frontend.gguf.tensors import Weight, rearranged, weight
from graphc.frontend.torch_export import require_torch

if TYPE_CHECKING:
    import torch

_ARCHITECTURE = "general.architecture"


@dataclass(frozen=True)
class Built:
    """`weights` by the module's parameter names; `config` as transformers reads the metadata."""

    module: torch.nn.Module
    weights: Mapping[str, Weight]
    config: Any


def build(file: GgufFile, *, packed: bool = True) -> Built:
    """The module in evaluation mode; `packed`: quantised and half weights are left unread."""
    path = file.path
    require_torch(str(path))
    _check(file)
    transformers, ggml = _libraries(path)
    record, config = _config(transformers, ggml, path)
    module = _empty(transformers, config, path)
    weights = dict(_weights(file, ggml, module, record))
    _fill(module, weights, path, packed)
    module = module.eval().requires_grad_(False)
    huggingface.dense_experts(module)
    return Built(module, weights, config)


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


def _empty(transformers: Any, config: Any, path: Path) -> Any:
    """The module without memory for its parameters."""
    import torch
    from accelerate import init_empty_weights

    from graphc.frontend.torch_export.program import quiet

    kind = transformers.AutoModelForCausalLM
    if getattr(config, "architectures", None):
        kind = huggingface.class_of(transformers, config, path)
    elif getattr(config, "is_encoder_decoder", False):
        kind = transformers.AutoModelForSeq2SeqLM
    try:
        with quiet(), init_empty_weights(include_buffers=False):
            build = kind.from_config if hasattr(kind, "from_config") else kind._from_config
            return build(config, dtype=torch.float32)
    except Exception as error:
        raise ModelError(
            f"{path}: transformers cannot build it: {huggingface.brief(error)}"
        ) from error


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


def _fill(module: Any, weights: Mapping[str, Weight], path: Path, packed: bool) -> None:
    import torch

    parameters = dict(module.named_parameters())
    state: dict[str, Any] = {}
    for name, parameter in parameters.items():
        found = weights.get(name)
        if found is None:
            continue
        if tuple(parameter.shape) != found.shape:
            raise ModelError(
                f"{path}: {name} has the shape {list(found.shape)}, its configuration says "
                f"{list(parameter.shape)}"
            )
        left = packed and found.quantized is not None
        state[name] = torch.empty(found.shape) if left else torch.from_numpy(_own(found.read()))
    module.load_state_dict(state, strict=False, assign=True)
    module.tie_weights()
    missing = [name for name, value in module.named_parameters() if value.is_meta]
    if missing:
        raise ModelError(
            f"{path}: it has no weights for {', '.join(missing[:3])} ({len(missing)} in all)"
        )


def _own(array: np.ndarray) -> np.ndarray:
    return np.require(array, np.float32, ["C", "W", "O"])
