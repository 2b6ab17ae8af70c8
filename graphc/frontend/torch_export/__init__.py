"""The torch.export importer: a .pt2 file or a live ExportedProgram -> Model, shapes symbolic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from graphc.errors import ConfigError
from graphc.frontend.onnx.symbols import parse_bounds
from graphc.ir import Model

if TYPE_CHECKING:
    import torch

Dims = Mapping[str, int | tuple[int, int | None]]


def load(path: Path, *, dims: Dims | None = None, outputs: Sequence[str] = ()) -> Model:
    """Imports a file that torch.export.save wrote; see `graphc.frontend.load`."""
    require_torch(str(path))
    from graphc.frontend.torch_export import archive

    exported, names = archive.read(path)
    return load_program(exported, names, dims=dims, outputs=outputs, source=str(path))


def load_program(
    exported: torch.export.ExportedProgram,
    names: Mapping[str, str] | None = None,
    *,
    dims: Dims | None = None,
    outputs: Sequence[str] = (),
    source: str = "the exported program",
) -> Model:
    """Imports a live program; `names` are those of its dimensions' symbols."""
    from graphc.frontend.torch_export.convert import convert
    from graphc.frontend.torch_export.program import prepare

    given = parse_bounds(dims or {})
    return convert(prepare(exported, names or {}), given, source, outputs)


def require_torch(source: str) -> None:
    """Says how to install the extra that reads this kind of model."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"{source}: reading it needs PyTorch: pip install 'graphc[torch]'"
        ) from error
