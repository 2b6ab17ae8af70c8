"""What a model's own generation_config.json says: tokens that end an answer, sampling defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from graphc.errors import ArtifactError, InputError
from graphc.llm.chat import CONFIG
from graphc.llm.json_files import read_object
from graphc.llm.sampling import SamplingParams
from graphc.llm.tokenizer import Tokenizer

FILE: Final = "generation_config.json"
_FLOATS: Final = ("temperature", "top_p", "min_p", "typical_p", "repetition_penalty")


@dataclass(frozen=True)
class GenerationConfig:
    """Stop tokens by id, and how to sample when a request does not say."""

    stop_tokens: tuple[int, ...] = ()
    defaults: SamplingParams = field(default_factory=SamplingParams)

    @classmethod
    def open(cls, directory: Path, tokenizer: Tokenizer | None) -> GenerationConfig:
        """From the artifact; a model without the file ends with its tokenizer's eos_token."""
        place = directory / FILE
        record = read_object(place)
        stops = _ids(record.get("eos_token_id"), place)
        if not stops and tokenizer is not None:
            stops = _eos_of(directory, tokenizer)
        changes: dict[str, Any] = {
            name: float(record[name])
            for name in _FLOATS
            if isinstance(record.get(name), int | float)
        }
        if isinstance(record.get("top_k"), int):
            changes["top_k"] = record["top_k"]
        if record.get("do_sample") is False:
            changes["temperature"] = 0.0
        try:
            return cls(stops, SamplingParams(**changes))
        except InputError as error:
            raise ArtifactError(f"{place}: {error}") from error


def _ids(value: Any, place: Path) -> tuple[int, ...]:
    found = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(token, int) and token >= 0 for token in found):
        raise ArtifactError(f"{place}: eos_token_id is {value!r:.60}: expected token ids")
    return tuple(found)


def _eos_of(directory: Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    spelling = read_object(directory / CONFIG).get("eos_token")
    if isinstance(spelling, dict):
        spelling = spelling.get("content")
    token = tokenizer.token_of(spelling) if isinstance(spelling, str) else None
    return () if token is None else (token,)
