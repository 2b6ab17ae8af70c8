"""Normalisers as operations on text: maps of characters, replacements, composition."""

from __future__ import annotations

import base64
import struct
import unicodedata
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from graphc.errors import UnsupportedError
from graphc.llm.vocabulary.layout import Layout
from graphc.llm.vocabulary.probe import changed, character_map, characters, members, where
from graphc.llm.vocabulary.regex import compile_regex

# Operations of normalize.c, with up to three operands.
MAP, REORDER, COMPOSE, REPLACE, REPLACE_PATTERN, PREPEND, STRIP, CHARSMAP = range(8)
_HANGUL_MARKS: Final = (0x1160, 0x1200)

Operation = tuple[int, int, int, int]


def compile_normalizer(record: Mapping[str, Any] | None, layout: Layout) -> list[Operation]:
    """The operations of one entry of tokenizer.json's `normalizer`."""
    if record is None:
        return []
    kind = record["type"]
    if kind == "Sequence":
        return [op for each in record["normalizers"] for op in compile_normalizer(each, layout)]
    if kind in ("NFD", "NFKD", "NFC", "NFKC"):
        return _unicode_form(kind, layout)
    if kind in ("Lowercase", "StripAccents", "Nmt"):
        return _mapped({"type": kind}, layout)
    if kind == "BertNormalizer":
        return _bert(record, layout)
    if kind == "Precompiled":
        return [_charsmap(base64.b64decode(record["precompiled_charsmap"]), layout)]
    if kind == "Prepend":
        return [(PREPEND, layout.add(record["prepend"].encode()), 0, 0)]
    if kind == "Strip":
        spaces = where(lambda c: make(record).normalize_str(f"{c}a{c}") != f"{c}a{c}")
        sides = record["strip_left"] + 2 * record["strip_right"]
        return [(STRIP, layout.add_set(spaces), sides, 0)]
    if kind == "Replace":
        content = layout.add(record["content"].encode())
        if "String" in record["pattern"]:
            return [(REPLACE, layout.add(record["pattern"]["String"].encode()), content, 0)]
        pattern = compile_regex(record["pattern"]["Regex"], layout)
        return [(REPLACE_PATTERN, pattern, content, 0)]
    raise UnsupportedError(
        f"the normalizer {kind} is not supported: text goes through Python's tokenizer only"
    )


def make(record: Mapping[str, Any]) -> Any:
    """The library's normalizer of that description."""
    import json

    import tokenizers

    empty = {"type": "WordLevel", "vocab": {"x": 0}, "unk_token": "x"}
    outer = {"version": "1.0", "added_tokens": [], "normalizer": dict(record), "model": empty}
    names = ("truncation", "padding", "pre_tokenizer", "post_processor", "decoder")
    text = json.dumps({**dict.fromkeys(names), **outer})
    return tokenizers.Tokenizer.from_str(text).normalizer


def _mapped(record: Mapping[str, Any], layout: Layout) -> list[Operation]:
    return [(MAP, layout.add_map(character_map(make(record))), 0, 0)]


def _bert(record: Mapping[str, Any], layout: Layout) -> list[Operation]:
    accents = record["strip_accents"]
    accents = record["lowercase"] if accents is None else accents
    first = {**record, "strip_accents": False, "lowercase": False}
    steps = _mapped(first, layout)
    if accents:
        # Not what StripAccents takes away: of the marks only those without width.
        nothing = {**first, "clean_text": False, "handle_chinese_chars": False}
        marks = {**nothing, "strip_accents": True}
        steps += [*_unicode_form("NFD", layout), *_mapped(marks, layout)]
    if record["lowercase"]:
        steps += _mapped({"type": "Lowercase"}, layout)
    return steps


def _unicode_form(kind: str, layout: Layout) -> list[Operation]:
    """Decompose every character, order its marks, and for NFC and NFKC put together again."""
    decomposed = kind.replace("C", "D")
    apart = character_map(make({"type": decomposed}))
    # Alone, a character decomposes as in a text; single ones that stay as they are need no entry.
    order = _combining_classes()
    steps: list[Operation] = [
        (MAP, layout.add_map(apart), 0, 0),
        (REORDER, layout.add_words(order), 0, 0),
    ]
    if kind.endswith("C"):
        steps.append((COMPOSE, layout.add_words(_compositions()), layout.add_words(order), 0))
    return steps


def _combining_classes() -> list[int]:
    """n, then n x (code point, class), ascending: the marks that canonical order moves."""
    nfd = make({"type": "NFD"}).normalize_str
    found = {point: unicodedata.combining(chr(point)) for point in characters()}
    # The library may know marks that this Python does not: they move before one of class 240.
    for point in characters():
        c = chr(point)
        unknown = unicodedata.category(c) == "Cn"
        if unknown and nfd(f"a\u0345{c}") != f"a\u0345{c}":
            found[point] = 230 if nfd(f"a\u0315{c}") != f"a\u0315{c}" else 232
    # And may not know others, which then stay where they are.
    known = {p: k for p, k in found.items() if k and _moves(nfd, chr(p), k)}
    return [len(known), *(word for pair in sorted(known.items()) for word in pair)]


def _moves(nfd: Any, c: str, kind: int) -> bool:
    if kind == 240:
        return bool(nfd(f"a{c}\u0301") != f"a{c}\u0301")
    return bool(nfd(f"a\u0345{c}") != f"a\u0345{c}")


def _compositions() -> list[int]:
    """n, then n x (first, second, whole), ascending."""
    nfd, nfc = (make({"type": kind}).normalize_str for kind in ("NFD", "NFC"))
    triples = []
    for whole in changed(make({"type": "NFD"})):
        point = ord(whole)
        apart = nfd(whole)
        if apart == whole or nfc(whole) != whole or len(apart) < 2:
            continue
        first, second = nfc(apart[:-1]), apart[-1]
        if len(first) == 1 and nfc(first + second) == whole:
            triples.append((ord(first), ord(second), point))
    return [len(triples), *(word for triple in sorted(triples) for word in triple)]


def _charsmap(blob: bytes, layout: Layout) -> Operation:
    """SentencePiece's map: a double array of keys, then what they become, ended by zeros.

    The library takes the shortest key that a piece begins with, so longer ones are left out.
    """
    (size,) = struct.unpack_from("<I", blob)
    units = np.frombuffer(blob, "<u4", size // 4, 4).tolist()
    texts = blob[4 + size :]
    keys: dict[bytes, bytes] = {}
    stack = [(_offset(units[0]), b"")]
    while stack:
        base, key = stack.pop()
        for byte in range(1, 256):
            place = base ^ byte
            if place >= len(units) or units[place] & 0x800000FF != byte:
                continue
            below = place ^ _offset(units[place])
            longer = key + bytes([byte])
            if units[place] >> 8 & 1:
                start = units[below] & 0x7FFFFFFF
                keys[longer] = texts[start : texts.index(b"\0", start)]
            else:
                stack.append((below, longer))
    order = sorted(keys)
    trie = layout.add_trie({key: number for number, key in enumerate(order)})
    strings = layout.add_strings([keys[key] for key in order])
    return (CHARSMAP, trie, strings, _clusters(layout))


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & 0x200) >> 6)


def _clusters(layout: Layout) -> int:
    """Three sets that say what belongs together as one visible character: marks, what goes before
    others, and controls. Pairs that are longer than 5 bytes do not matter to the map."""
    import tokenizers

    cut = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"\X"), "isolated").pre_tokenize_str
    follows = where(lambda c: len(cut("a" + c)) == 1)
    leads = where(lambda c: len(cut(c + "a")) == 1 and c not in "\r\n")
    control = where(lambda c: len(cut(c + "\u0301")) == 2)
    hangul = members("".join(map(chr, range(*_HANGUL_MARKS))))
    sets = (follows & ~hangul, leads & ~follows, control)
    return layout.add_words(layout.add_set(each) for each in sets)
