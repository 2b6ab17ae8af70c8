"""vocabulary.bin for an artifact, from the text files that lie in it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from graphc import env
from graphc.errors import InputError, ToolError, UnsupportedError
from graphc.llm.chat import ChatTemplate
from graphc.llm.generation_config import GenerationConfig
from graphc.llm.tokenizer import FILE as TOKENIZER_FILE
from graphc.llm.tokenizer import Tokenizer
from graphc.llm.vocabulary.compile import compile_vocabulary

_MARK: Final = "\ue000user's words\ue000"


def vocabulary_of(directory: Path) -> bytes | None:
    """For the C tokenizer; None, with the reason logged, when only Python can read the texts."""
    place = directory / TOKENIZER_FILE
    if not place.exists():
        return None
    try:
        tokenizer = Tokenizer.open(directory)
        config = GenerationConfig.open(directory, tokenizer)
        return compile_vocabulary(
            place.read_text(encoding="utf-8"),
            stop_tokens=config.stop_tokens,
            chat=_chat(ChatTemplate.open(directory)),
        )
    except (UnsupportedError, ToolError) as error:
        env.log(1, f"no vocabulary for graphc-run: {error}")
        return None


def _chat(template: ChatTemplate) -> tuple[str, str] | None:
    """What stands around a user's first words; None when the template has no such place."""
    try:
        text = template.render([{"role": "user", "content": _MARK}])
    except (InputError, UnsupportedError, ToolError):
        return None
    before, mark, after = text.partition(_MARK)
    return (before, after) if mark and _MARK not in after else None
