"""Text to tokens and back with the `tokenizers` library, from an artifact's tokenizer.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from graphc.errors import ArtifactError, InputError, ToolError
from graphc.llm.text_stream import TextStream

if TYPE_CHECKING:
    import tokenizers

FILE: Final = "tokenizer.json"
_CONTEXT: Final = 6  # tokens of the prompt that a decoder may need to see before the answer
_MAX_BYTES: Final = 1 << 28


class Tokenizer:
    """The artifact's tokenizer; may be used from many threads."""

    def __init__(self, engine: tokenizers.Tokenizer) -> None:
        engine.no_truncation()
        engine.no_padding()
        self._engine = engine

    @classmethod
    def open(cls, directory: Path) -> Tokenizer:
        """From `directory`/tokenizer.json; ArtifactError when it is missing or damaged."""
        place = directory / FILE
        library = _library()
        try:
            if place.stat().st_size > _MAX_BYTES:
                raise ArtifactError(f"{place}: larger than {_MAX_BYTES} bytes, not a tokenizer")
            text = place.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise ArtifactError(
                f"{directory} has no {FILE}: copy the model's own into it, or pass token ids"
            ) from error
        except (OSError, UnicodeDecodeError) as error:
            raise ArtifactError(f"cannot read {place}: {error}") from error
        try:
            return cls(library.Tokenizer.from_str(text))
        except Exception as error:
            raise ArtifactError(f"{place}: not a tokenizer: {error}") from error

    @property
    def vocabulary_size(self) -> int:
        """Tokens, the added ones included; the model's logits may have more."""
        return int(self._engine.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str | bytes, *, special: bool = True) -> list[int]:
        """Token ids; `special` adds what the model wants around a text, such as a first token.

        InputError for an empty text and for bytes that are not UTF-8.
        """
        checked = check_text(text)
        if not checked:
            raise InputError("the prompt is empty: give some text, or token ids")
        ids: list[int] = self._engine.encode(checked, add_special_tokens=special).ids
        return ids

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text; control tokens are part of it only with `special`."""
        return str(self._engine.decode(tokens, skip_special_tokens=not special))

    def token_of(self, text: str) -> int | None:
        """The id of a token by its own spelling, such as "</s>"."""
        return self._engine.token_to_id(text)

    def spelling(self, token: int) -> str:
        """One token as text by itself, control tokens included."""
        return self.decode([token], special=True)

    def stream(self, stops: Sequence[str] = (), prompt: Sequence[int] = ()) -> TextStream:
        """A stream for the answer that follows `prompt`."""
        return TextStream(self.decode, stops, list(prompt[-_CONTEXT:]))


def check_text(text: str | bytes) -> str:
    """Text that can be encoded as UTF-8; InputError says at which place it cannot."""
    try:
        if isinstance(text, bytes):
            return text.decode("utf-8")
        text.encode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"the text is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}; "
            "convert it, for instance with iconv -t utf-8"
        ) from error
    except UnicodeEncodeError as error:
        raise InputError(
            f"the text has half a character (a surrogate) at place {error.start}: "
            "decode its source as UTF-8"
        ) from error
    return text


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ToolError(
            "text needs the tokenizers library: pip install 'graphc[llm]', or pass token ids"
        ) from error
    return tokenizers
