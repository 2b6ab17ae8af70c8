"""Tables of characters, found by asking `tokenizers` itself about every one.

Its regular expressions and its normalisers know different versions of Unicode, neither Python's:
what a class contains and what a character becomes is therefore observed and not looked up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from graphc.errors import UnsupportedError
from graphc.llm.vocabulary.layout import CODE_POINTS

Members = npt.NDArray[np.bool_]
# Planes 0 to 3 and 14 have characters; the others are alike throughout, so one stands for each.
_ASSIGNED: Final = ((0x0, 0xD800), (0xE000, 0x40000), (0xE0000, 0xF0000))
_ALIKE: Final = ((0x40000, 0xE0000), (0xF0000, 0x10FFFE))

_STRETCH: Final = 64


def characters() -> Iterator[int]:
    """Every code point that may differ from its neighbours."""
    for first, last in _ASSIGNED:
        yield from range(first, last)
    yield from (first for first, _ in _ALIKE)


@functools.lru_cache(maxsize=1)
def _text() -> str:
    return "".join(map(chr, characters()))


@functools.lru_cache(maxsize=256)
def expression_set(expression: str) -> Members:
    """The characters that a regular expression for one character matches."""
    import tokenizers

    try:
        pattern = tokenizers.Regex(expression)
    except Exception as error:
        raise UnsupportedError(f"the pattern {expression!r} cannot be read: {error}") from error
    return removed_set(tokenizers.pre_tokenizers.Split(pattern, "removed"))


def removed_set(pre_tokenizer: Any) -> Members:
    """The characters that a pre-tokenizer takes away."""
    kept = "".join(part for part, _ in pre_tokenizer.pre_tokenize_str(_text()))
    return ~members(kept)


def isolated_set(pre_tokenizer: Any) -> Members:
    """The characters that a pre-tokenizer puts into a piece of their own between letters."""
    pieces = pre_tokenizer.pre_tokenize_str("a" + "a".join(_text()) + "a")
    return members("".join(piece for piece, _ in pieces if len(piece) == 1 and piece != "a"))


def where(holds: Callable[[str], bool]) -> Members:
    """The characters for which a question is answered with yes."""
    return members("".join(c for c in _text() if holds(c)))


def members(text: str) -> Members:
    """A set as bits [CODE_POINTS]; planes that are alike follow the one that stands for them."""
    found = np.zeros(CODE_POINTS, np.bool_)
    found[np.frombuffer(text.encode("utf-32-le"), "<u4")] = True
    for first, last in _ALIKE:
        found[first:last] = found[first]
    return found


def character_map(normalizer: Any) -> dict[int, str]:
    """What each character becomes by itself, where that is something else."""
    change = normalizer.normalize_str
    return {ord(c): after for c in changed(normalizer) if (after := change(c)) != c}


def changed(normalizer: Any) -> Iterator[str]:
    """The characters that may become something else: those of stretches that do not stay."""
    text = _text()
    for start in range(0, len(text), _STRETCH):
        stretch = text[start : start + _STRETCH]
        if normalizer.normalize_str(stretch) != stretch:
            yield from stretch
