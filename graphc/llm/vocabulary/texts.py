"""What each token adds to a text when it is written out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from graphc.llm.vocabulary.layout import Layout

_BYTE: Final = re.compile(r"<0x([0-9A-F]{2})>")


def token_texts(engine: Any, record: Mapping[str, Any], layout: Layout) -> dict[str, int]:
    """Bytes of each token after others, and at the beginning where some lose their space.

    Observed with the library's decoder behind a token that it writes as it is; tokens that are
    parts of characters are looked up, since a decoder writes those as broken.
    """
    from graphc.llm.vocabulary.compile import byte_values

    size = 1 + max(engine.get_vocab(with_added_tokens=True).values())
    kinds = _decoder_kinds(record["decoder"])
    values = byte_values() if "ByteLevel" in kinds else {}
    special = {token["id"] for token in record["added_tokens"] if token["special"]}
    added = {token["id"] for token in record["added_tokens"]}
    before = _anchor(engine, added)
    written = engine.decode([before])
    later, first = [], []
    for token in range(size):
        spelling = engine.id_to_token(token) or ""
        found = _BYTE.fullmatch(spelling)
        if values and token not in added:
            raw = bytes(values.get(c, 0x3F) for c in spelling)
        elif found and "ByteFallback" in kinds:
            raw = bytes([int(found[1], 16)])
        else:
            raw = None
        if raw is None:
            both = engine.decode([before, token], skip_special_tokens=False)
            later.append(both.removeprefix(written).encode())
            first.append(engine.decode([token], skip_special_tokens=False).encode())
            continue
        later.append(raw)
        first.append(raw)
    flags = bytes(token in special for token in range(size))
    return {
        "texts": layout.add_strings(later),
        "first_texts": layout.add_strings(first),
        "special": layout.add(flags),
    }


def _decoder_kinds(record: Mapping[str, Any] | None) -> set[str]:
    if record is None:
        return set()
    if record["type"] == "Sequence":
        return {kind for each in record["decoders"] for kind in _decoder_kinds(each)}
    return {str(record["type"])}


def _anchor(engine: Any, added: set[int]) -> int:
    """A token whose text ends in a letter."""
    ids: list[int] = engine.encode("a", add_special_tokens=False).ids
    plain = [token for token in ids if token not in added and engine.decode([token]).strip()]
    return plain[-1] if plain else ids[-1] if ids else 0
