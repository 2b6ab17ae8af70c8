"""Pre-tokenizers as operations on pieces: split at matches, put something in front."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from graphc.errors import UnsupportedError
from graphc.llm.vocabulary import regex
from graphc.llm.vocabulary.layout import Layout
from graphc.llm.vocabulary.probe import Members, isolated_set, removed_set, where
from graphc.llm.vocabulary.regex import compile_regex

# Operations of split.c, with up to three operands.
SPLIT, SPACE_BEFORE, METASPACE = range(3)
_BEHAVIOURS: Final = {
    "Removed": 0,
    "Isolated": 1,
    "MergedWithPrevious": 2,
    "MergedWithNext": 3,
    "Contiguous": 4,
}
_SCHEMES: Final = {"always": 0, "first": 1, "never": 2}
# The pattern of ByteLevel, as OpenAI published it with GPT-2.
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

Operation = tuple[int, int, int, int]


def compile_pre_tokenizer(record: Mapping[str, Any] | None, layout: Layout) -> list[Operation]:
    """The operations of one entry of tokenizer.json's `pre_tokenizer`."""
    if record is None:
        return []
    kind = record["type"]
    if kind == "Sequence":
        steps = record["pretokenizers"]
        return [op for each in steps for op in compile_pre_tokenizer(each, layout)]
    if kind == "ByteLevel":
        before = [(SPACE_BEFORE, 0, 0, 0)] if record["add_prefix_space"] else []
        uses = record.get("use_regex", True)
        return before + ([_split(compile_regex(_GPT2, layout), "Isolated")] if uses else [])
    if kind == "Split":
        pattern = record["pattern"]
        expression = pattern["Regex"] if "Regex" in pattern else re.escape(pattern["String"])
        program = compile_regex(expression, layout)
        return [_split(program, record["behavior"], record.get("invert", False))]
    if kind == "Metaspace":
        replacement = layout.add(record["replacement"].encode())
        split = record.get("split", True)
        return [(METASPACE, replacement, _SCHEMES[record["prepend_scheme"]], int(split))]
    if kind == "Whitespace":
        return [_split(_words_and_others(layout), "Removed", True)]
    if kind == "CharDelimiterSplit":
        return [_split(compile_regex(re.escape(record["delimiter"]), layout), "Removed")]
    return _by_class(kind, record, layout)


def byte_level(record: Mapping[str, Any] | None) -> bool:
    """Whether the model sees bytes; it must be the last thing that happens to a piece."""
    if record is None:
        return False
    steps = record["pretokenizers"] if record["type"] == "Sequence" else [record]
    found = [step["type"] == "ByteLevel" for step in steps]
    if any(found[:-1]):
        raise UnsupportedError("a pre-tokenizer after ByteLevel is not supported")
    return bool(found and found[-1])


def _words_and_others(layout: Layout) -> int:
    r"""\w+|[^\w\s]+ with the classes of another library than the one that reads patterns."""
    from tokenizers import pre_tokenizers as library

    whitespace = library.Whitespace()
    spaces = removed_set(whitespace)
    word = where(lambda c: len(whitespace.pre_tokenize_str(f"a{c}")) == 1) & ~spaces
    others = layout.add_set(~word & ~spaces)
    words = layout.add_set(word)
    code = [
        (regex.SPLIT, 1, 3, 0),
        (regex.SPAN, words, 1, regex.ANY_NUMBER),
        (regex.JUMP, 4, 0, 0),
        (regex.SPAN, others, 1, regex.ANY_NUMBER),
    ]
    return regex.add_program(code, layout)


def _by_class(kind: str, record: Mapping[str, Any], layout: Layout) -> list[Operation]:
    """Those that look at one character at a time."""
    from tokenizers import pre_tokenizers as library

    spaces = library.WhitespaceSplit
    if kind == "WhitespaceSplit":
        return [_split(_single(removed_set(spaces()), layout), "Removed")]
    if kind == "BertPreTokenizer":
        marks = isolated_set(library.Punctuation("isolated"))
        return [
            _split(_single(removed_set(spaces()), layout), "Removed"),
            _split(_single(marks, layout), "Isolated"),
        ]
    if kind == "Punctuation":
        marks = isolated_set(library.Punctuation("isolated"))
        return [_split(_single(marks, layout), record["behavior"])]
    if kind == "Digits":
        digits = isolated_set(library.Digits(individual_digits=True))
        alone = record["individual_digits"]
        return [_split(_single(digits, layout), "Isolated" if alone else "Contiguous")]
    raise UnsupportedError(
        f"the pre-tokenizer {kind} is not supported: text goes through Python's tokenizer only"
    )


def _single(members: Members, layout: Layout) -> int:
    return regex.add_program([(regex.SET, layout.add_set(members), 0, 0)], layout)


def _split(program: int, behaviour: str, invert: bool = False) -> Operation:
    return (SPLIT, program, _BEHAVIOURS[behaviour], int(invert))
