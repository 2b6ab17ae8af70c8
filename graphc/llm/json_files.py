"""Small files that travel with a language model; they may be missing, but not be nonsense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from graphc.errors import ArtifactError

_MAX_BYTES: Final = 1 << 24


def read_text(place: Path) -> str | None:
    """The file's text, or None when there is no such file."""
    try:
        if place.stat().st_size > _MAX_BYTES:
            raise ArtifactError(f"{place}: larger than {_MAX_BYTES} bytes")
        return place.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(f"cannot read {place}: {error}") from error


def read_object(place: Path) -> dict[str, Any]:
    """The file's JSON object, empty when there is no such file."""
    text = read_text(place)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{place}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ArtifactError(f"{place}: is a {type(value).__name__}, expected an object")
    return value
