"""What `graphc check` reports: every blocker of a model, or what it takes, gives and holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from graphc.errors import UnsupportedError
from graphc.frontend import load
from graphc.ir import Signature


@dataclass(frozen=True)
class Report:
    """`signature` is None when there are blockers; statistics: nodes, parameters, bytes."""

    source: str
    blockers: tuple[str, ...] = ()
    signature: Signature | None = None
    statistics: Mapping[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.blockers


def check(
    source: str | Path, *, dims: Mapping[str, int | tuple[int, int | None]] | None = None
) -> Report:
    """Imports the model without compiling it.

    Raises ModelError when it is broken rather than unsupported, ConfigError for bad arguments.
    """
    try:
        model = load(source, dims=dims)
    except UnsupportedError as error:
        return Report(str(source), error.blockers or (str(error),))
    return Report(str(source), (), model.signatures["main"], model.statistics)
