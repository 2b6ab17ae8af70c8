"""A Hugging Face folder (config.json, weights, tokenizer) -> Model, by transformers and export.

transformers builds the class that config.json names, from the folder alone: nothing is downloaded
and no code of the folder is run. Weights are taken as float32.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphc.errors import ConfigError, ModelError, UnsupportedError
from graphc.frontend.torch_export import load_program, require_torch
from graphc.ir import Model

if TYPE_CHECKING:
    import torch

COMPANIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "preprocessor_config.json",
)
"""Files of the folder that whoever runs the model needs, copied into the artifact."""

_WEIGHT_SUFFIXES = (".safetensors", ".bin")
_MOST_COMPANION = 256 << 20
_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions")
_MOST_LENGTH = 1 << 20
_MOST_BATCH = 1 << 16


@dataclass(frozen=True)
class Axis:
    """A dynamic dimension of the inputs; `least` is tried first, then 2."""

    name: str
    most: int


@dataclass(frozen=True)
class Input:
    """One argument of forward: its example's kind and the axes, fixed or dynamic."""

    shape: tuple[int | Axis, ...]
    kind: str


def is_folder(path: Path) -> bool:
    return path.is_dir() and (path / "config.json").is_file()


def load(
    path: Path,
    *,
    dims: Mapping[str, int | tuple[int, int | None]] | None = None,
    outputs: Sequence[str] = (),
) -> Model:
    """Imports the folder at `path`; see `graphc.frontend.load`."""
    module, inputs = build(path)
    exported, names = export(module, inputs, str(path))
    return load_program(exported, names, dims=dims, outputs=outputs, source=str(path))


def companions(path: Path) -> dict[str, bytes]:
    """What of the folder goes into the artifact, by name."""
    found = {}
    for name in COMPANIONS:
        file = path / name
        if file.is_file() and file.stat().st_size <= _MOST_COMPANION:
            found[name] = file.read_bytes()
    return found


# -- the module ----------------------------------------------------------------------------


def build(path: Path) -> tuple[torch.nn.Module, dict[str, Input]]:
    """The module with its weights, in evaluation mode, and what it is to be called with."""
    require_torch(str(path))
    library = require_transformers(path)
    config = config_of(library, path)
    kind = class_of(library, config, path)
    if not any(file.suffix in _WEIGHT_SUFFIXES for file in path.iterdir()):
        raise ModelError(f"{path}: it has no weights (*.safetensors)")
    import torch

    from graphc.frontend.torch_export.program import quiet

    for part in (config, getattr(config, "text_config", None), getattr(config, "decoder", None)):
        if part is not None and getattr(part, "use_cache", None):
            part.use_cache = False
    with quiet():
        module, missing = _loaded(kind, config, path, {"dtype": torch.float32})
        if missing and all(name.startswith("pooler.") for name in missing):
            module, missing = _loaded(
                kind, config, path, {"dtype": torch.float32, "add_pooling_layer": False}
            )
    if missing:
        raise ModelError(
            f"{path}: it has no weights for {', '.join(missing[:3])} ({len(missing)} in all) that "
            f"{type(module).__name__} needs: name the class that was saved in config.json"
        )
    module = module.eval().requires_grad_(False)
    dense_experts(module)
    return module, inputs_of(module, path)


def _loaded(
    kind: Any, config: Any, path: Path, options: Mapping[str, Any]
) -> tuple[Any, list[str]]:
    """The module, and the weights that the folder does not have."""
    try:
        module, report = kind.from_pretrained(
            path, config=config, local_files_only=True, output_loading_info=True, **options
        )
    except Exception as error:
        raise ModelError(f"{path}: transformers cannot load it: {brief(error)}") from error
    return module, sorted(report["missing_keys"])


def dense_experts(module: Any) -> None:
    """Experts as batched products: the default sorts tokens by expert, which is for training."""
    if hasattr(module, "set_experts_implementation") and module._can_set_experts_implementation():
        module.set_experts_implementation("batched_mm")


def require_transformers(path: Path) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ConfigError(
            f"{path}: building it needs transformers: pip install 'graphc[torch]'"
        ) from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def config_of(transformers: Any, path: Path) -> Any:
    try:
        record = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: config.json cannot be read: {error}") from error
    if isinstance(record, dict) and "auto_map" in record and not _known(transformers, record):
        raise UnsupportedError(
            f"{path}: its architecture is code of the folder itself, which is not run: export it "
            "with torch.export.save where you trust it, and compile the .pt2 file"
        )
    try:
        return transformers.AutoConfig.from_pretrained(
            path, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        raise ModelError(f"{path}: transformers cannot read config.json: {brief(error)}") from error


def _known(transformers: Any, record: Mapping[str, Any]) -> bool:
    return record.get("model_type") in transformers.models.auto.configuration_auto.CONFIG_MAPPING


def class_of(transformers: Any, config: Any, path: Path) -> Any:
    """The class that config.json names, or the base model where it names none."""
    names = getattr(config, "architectures", None) or []
    if not names:
        return transformers.AutoModel
    kind = getattr(transformers, str(names[0]), None)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        raise UnsupportedError(
            f"{path}: transformers {transformers.__version__} has no architecture {names[0]!r}"
        )
    return kind


def brief(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:300]}"


# -- its inputs ----------------------------------------------------------------------------


def inputs_of(module: Any, path: Path) -> dict[str, Input]:
    """From forward's arguments and the config: words, a picture, sound, or several of them."""
    import inspect

    accepted = inspect.signature(module.forward).parameters
    config = module.config
    batch = Axis("batch", _MOST_BATCH)
    found: dict[str, Input] = {}
    main = module.main_input_name
    if main == "input_ids" or "input_ids" in accepted:
        words = (batch, Axis("sequence", _longest(config)))
        found["input_ids"] = Input(words, "token")
        if "attention_mask" in accepted:
            found["attention_mask"] = Input(words, "one")
        if "token_type_ids" in accepted and _number(config, "type_vocab_size", 0) > 1:
            found["token_type_ids"] = Input(words, "zero")
    if "pixel_values" in accepted:
        images = Axis("images", _MOST_BATCH) if found else batch
        found["pixel_values"] = Input((images, *_picture(config, path)), "real")
    if main == "input_values":
        found["input_values"] = Input((batch, Axis("samples", 1 << 24)), "real")
    elif main == "input_features":
        features, frames = (
            _number(config, "num_mel_bins", 0),
            _number(config, "max_source_positions", 0),
        )
        if not features or not frames:
            raise UnsupportedError(f"{path}: config.json does not say how long its input is")
        found["input_features"] = Input((batch, features, 2 * frames), "real")
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in accepted:
        target = Axis("target", _longest(config))
        found["decoder_input_ids"] = Input((batch, target), "token")
    if not found:
        raise UnsupportedError(
            f"{path}: {type(module).__name__} takes {main}, which graphc cannot make up: export it "
            "with torch.export.save and compile the .pt2 file"
        )
    return found


def _longest(config: Any) -> int:
    for part in (config, getattr(config, "text_config", None)):
        for name in _LENGTHS:
            length = _number(part, name, 0)
            if length:
                return min(length, _MOST_LENGTH)
    return _MOST_LENGTH


def _number(config: Any, name: str, default: int) -> int:
    value = getattr(config, name, None)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _picture(config: Any, path: Path) -> tuple[int, int, int]:
    """Channels, height and width."""
    vision = getattr(config, "vision_config", None) or config
    channels = _number(vision, "num_channels", 3)
    size = getattr(vision, "image_size", None)
    if size is None and (path / "preprocessor_config.json").is_file():
        record = json.loads((path / "preprocessor_config.json").read_text(encoding="utf-8"))
        size = record.get("crop_size") or record.get("size")
    if isinstance(size, dict):
        size = [size.get("height"), size.get("width")]
    if isinstance(size, int):
        size = [size, size]
    if isinstance(size, (list, tuple)) and len(size) == 2 and all(isinstance(x, int) for x in size):
        return channels, size[0], size[1]
    raise UnsupportedError(f"{path}: config.json does not say how large its pictures are")


# -- the export ----------------------------------------------------------------------------


def export(
    module: torch.nn.Module, inputs: Mapping[str, Input], source: str
) -> tuple[torch.export.ExportedProgram, dict[str, str]]:
    """The module by torch.export, every axis dynamic, from length 1 on where its code allows."""
    import torch

    from graphc.frontend.torch_export.live import dim_names
    from graphc.frontend.torch_export.program import quiet

    example = {name: _example(item) for name, item in inputs.items()}
    reason: Exception | None = None
    for least in (1, 2):
        shared: dict[str, Any] = {}
        dynamic = {
            name: {
                axis: shared.setdefault(
                    extent.name,
                    torch.export.Dim(
                        extent.name, min=1 if extent.name == "batch" else least, max=extent.most
                    ),
                )
                for axis, extent in enumerate(item.shape)
                if isinstance(extent, Axis)
            }
            for name, item in inputs.items()
        }
        try:
            with quiet(), torch.no_grad():
                exported = torch.export.export(
                    module, (), example, dynamic_shapes=dynamic, strict=False
                )
        except Exception as error:  # noqa: BLE001  whatever the module's code provokes
            reason = reason or error
        else:
            return exported, dim_names(exported, (), example, dynamic)
    raise UnsupportedError(
        f"{source}: torch.export cannot trace {type(module).__name__} with dynamic batch and "
        f"length: {str(reason).strip()[:400]}"
    ) from reason


def _example(item: Input) -> torch.Tensor:
    import torch

    sizes = {"batch": 2, "images": 3, "sequence": 7, "target": 5, "samples": 4096}
    shape = [sizes[extent.name] if isinstance(extent, Axis) else extent for extent in item.shape]
    if item.kind == "real":
        return torch.zeros(shape)
    return torch.full(shape, 0 if item.kind == "zero" else 1, dtype=torch.int64)
