"""How text is cut before byte-level BPE, by the name in `tokenizer.ggml.pre`.

A file names only the rule; the rules are public knowledge of the models' own tokenizers. Each is a
list of regular expressions: every piece is cut further by the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_CONTRACTED = "'s|'t|'re|'ve|'m|'ll|'d"
_ANY_CASE = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = rf"{_CONTRACTED}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"


def _modern(numbers: str, words: str = r"[^\r\n\p{L}\p{N}]?\p{L}+", slash: str = "") -> str:
    """Contractions in any case, numbers of some length, punctuation with its line ends."""
    return (
        rf"{_ANY_CASE}|{words}|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n{slash}]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
)
_O200K = rf"{_CASED}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CJK_V3 = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK_V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"


@dataclass(frozen=True)
class PreTokenizer:
    """`cuts` in order; `whole_words`: a piece that is a token is never merged together."""

    cuts: tuple[str, ...]
    whole_words: bool = False
    normalise: bool = False  # to Unicode's NFC


_GPT2 = PreTokenizer((_WORDS,))
_DIGITS = PreTokenizer((r"\p{N}", _WORDS))
_LLAMA3 = PreTokenizer((_modern(r"\p{N}{1,3}"),), whole_words=True)
_THREES = PreTokenizer((_modern(r"\p{N}{1,3}"),))
_QWEN2 = PreTokenizer((_modern(r"\p{N}"),), normalise=True)
_FALCON = PreTokenizer((r"[\p{P}$+<=>^~|`]+", _WORDS, r"[0-9][0-9][0-9]"))
_DEEPSEEK_CODER = PreTokenizer(
    (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}")
)

PRE_TOKENIZERS: Final[Mapping[str, PreTokenizer]] = {
    **dict.fromkeys(
        ("gpt-2", "mpt", "olmo", "jais", "phi-2", "trillion", "granite-docling"), _GPT2
    ),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
        _DIGITS,
    ),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), _THREES),
    **dict.fromkeys(("qwen2", "stablelm2", "deepseek-r1-qwen", "megrez", "hunyuan"), _QWEN2),
    **dict.fromkeys(("gpt-4o", "llama4"), PreTokenizer((_O200K,))),
    **dict.fromkeys(
        ("deepseek-v3", "hunyuan-dense"), PreTokenizer((r"\p{N}{1,3}", _CJK_V3, _DEEPSEEK_V3))
    ),
    "deepseek-coder": _DEEPSEEK_CODER,
    "falcon": _FALCON,
    "tekken": PreTokenizer((_TEKKEN,), whole_words=True),
    "bloom": PreTokenizer((_BLOOM,)),
    "poro-chat": PreTokenizer((_BLOOM,)),
    "viking": PreTokenizer((r"\p{N}", _BLOOM)),
}
