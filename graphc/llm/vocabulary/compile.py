"""tokenizer.json -> vocabulary.bin."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from graphc.errors import ArtifactError, UnsupportedError
from graphc.llm.vocabulary.layout import NONE, Layout
from graphc.llm.vocabulary.normalizers import compile_normalizer
from graphc.llm.vocabulary.pre_tokenizers import byte_level, compile_pre_tokenizer
from graphc.llm.vocabulary.probe import expression_set, where
from graphc.llm.vocabulary.texts import token_texts

FILE: Final = "vocabulary.bin"
_KINDS: Final = {"BPE": 0, "Unigram": 1, "WordPiece": 2}
_BYTE_LEVEL, _BYTE_FALLBACK, _FUSE_UNKNOWN, _IGNORE_MERGES = 1, 2, 4, 8
_SINGLE_WORD, _LSTRIP, _RSTRIP = 1, 2, 4


def compile_vocabulary(
    tokenizer_json: str,
    *,
    stop_tokens: Sequence[int] = (),
    chat: tuple[str, str] | None = None,
) -> bytes:
    """The file for the C tokenizer.

    `chat` is what stands before and after what a user says at the beginning of a conversation.
    UnsupportedError names what only the Python tokenizer can do; ArtifactError a damaged file.
    """
    import tokenizers

    try:
        engine = tokenizers.Tokenizer.from_str(tokenizer_json)
        record = json.loads(tokenizer_json)
    except Exception as error:
        raise ArtifactError(f"tokenizer.json is damaged: {error}") from error
    engine.no_truncation()
    engine.no_padding()
    model = record["model"]
    kind = model.get("type", "BPE")
    if kind not in _KINDS or model.get("dropout"):
        raise UnsupportedError(f"the tokenizer model {kind} is not supported outside Python")
    layout = Layout()
    header = layout.add(b"")  # its place is the first; filled in below
    assert header == 0
    is_bytes = byte_level(record["pre_tokenizer"])
    fields = {
        **_model_fields(model, kind, is_bytes, layout),
        **_added_fields(engine, record, layout),
        "normalizer": _operations(compile_normalizer(record["normalizer"], layout), layout),
        "pre_tokenizer": _operations(
            compile_pre_tokenizer(record["pre_tokenizer"], layout), layout
        ),
        **_affixes(engine, layout),
        **token_texts(engine, record, layout),
        "stops": layout.add_words(stop_tokens),
        "chat_before": NONE if chat is None else layout.add(chat[0].encode()),
        "chat_after": NONE if chat is None else layout.add(chat[1].encode()),
    }
    layout.replace_first([fields[name] for name in _FIELDS])
    return layout.to_bytes()


# The words of the first section, in the order of gc_vocabulary_fields.
_FIELDS: Final = (
    "kind", "flags", "tokens", "unknown", "trie", "merges", "scores", "bytes", "longest_word",
    "continuing", "ending", "unknown_score", "added_plain", "added_normalized", "added",
    "word_set", "space_set", "normalizer", "pre_tokenizer", "before", "after",
    "texts", "first_texts", "special", "stops", "chat_before", "chat_after",
)  # fmt: skip


def _operations(operations: list[tuple[int, int, int, int]], layout: Layout) -> int:
    return layout.add_words(word for operation in operations for word in operation)


def _model_fields(
    model: Mapping[str, Any], kind: str, is_bytes: bool, layout: Layout
) -> dict[str, int]:
    flags = _BYTE_LEVEL * is_bytes + _BYTE_FALLBACK * bool(model.get("byte_fallback"))
    fields = {
        "kind": _KINDS[kind],
        "merges": NONE,
        "scores": NONE,
        "continuing": NONE,
        "ending": NONE,
        "unknown_score": NONE,
        "longest_word": model.get("max_input_chars_per_word", NONE),
    }
    if kind == "Unigram":
        vocabulary = {piece: number for number, (piece, _) in enumerate(model["vocab"])}
        scores = [score for _, score in model["vocab"]]
        unknown = model["unk_id"]
        fields["scores"] = layout.add_doubles([*scores, min(scores) - 10.0])
        flags |= _FUSE_UNKNOWN
    else:
        vocabulary = model["vocab"]
        unknown = vocabulary.get(model.get("unk_token"))
        flags |= _FUSE_UNKNOWN * bool(model.get("fuse_unk"))
        flags |= _IGNORE_MERGES * bool(model.get("ignore_merges"))
    for name, key in (
        ("continuing", "continuing_subword_prefix"),
        ("ending", "end_of_word_suffix"),
    ):
        if model.get(key):
            fields[name] = layout.add(model[key].encode())
    if kind == "BPE":
        fields["merges"] = _merges(model, vocabulary, layout)
    spelled = _spellings(vocabulary, is_bytes)
    bytes_of = [vocabulary.get(f"<0x{byte:02X}>", NONE) for byte in range(256)]
    return {
        **fields,
        "flags": flags,
        "tokens": 1 + max(vocabulary.values(), default=-1),
        "unknown": NONE if unknown is None else unknown,
        "trie": layout.add_trie(spelled),
        "bytes": layout.add_words(bytes_of),
    }


def _spellings(vocabulary: Mapping[str, int], is_bytes: bool) -> dict[bytes, int]:
    """Tokens by what the model sees; those that no text can become are left out."""
    if not is_bytes:
        return {token.encode(): number for token, number in vocabulary.items() if token}
    values = byte_values()
    return {
        bytes(values[c] for c in token): number
        for token, number in vocabulary.items()
        if token and all(c in values for c in token)
    }


def byte_values() -> dict[str, int]:
    """The characters that stand for bytes in GPT-2's vocabulary: visible ones for themselves."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {
        chr(0x100 + place): byte for place, byte in enumerate(others)
    }


def _merges(model: Mapping[str, Any], vocabulary: Mapping[str, int], layout: Layout) -> int:
    """(left, right, rank, token) by left and right."""
    prefix = model.get("continuing_subword_prefix") or ""
    rows: dict[tuple[int, int], tuple[int, int]] = {}
    for rank, merge in enumerate(model["merges"]):
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        whole = left + right.removeprefix(prefix)
        if not {left, right, whole} <= vocabulary.keys():
            raise ArtifactError(f"tokenizer.json: merge {rank} ({left!r}, {right!r}) has no token")
        rows[vocabulary[left], vocabulary[right]] = (rank, vocabulary[whole])
    return layout.add_words(word for key in sorted(rows) for word in (*key, *rows[key]))


def _added_fields(engine: Any, record: Mapping[str, Any], layout: Layout) -> dict[str, int]:
    """Added tokens, which are found in the text before anything else happens to it."""
    plain: dict[bytes, int] = {}
    normalized: dict[bytes, int] = {}
    rows: list[tuple[int, int]] = []
    for token in record["added_tokens"]:
        content = token["content"]
        if token["normalized"] and not token["special"] and engine.normalizer is not None:
            content = engine.normalizer.normalize_str(content)
        if not content:
            continue
        (normalized if token["normalized"] else plain).setdefault(content.encode(), len(rows))
        bits = (token["single_word"], token["lstrip"], token["rstrip"])
        rows.append((token["id"], sum(bit << place for place, bit in enumerate(bits))))
    spaces = where(str.isspace) & expression_set(r"\s")
    return {
        "added_plain": layout.add_trie(plain),
        "added_normalized": layout.add_trie(normalized),
        "added": layout.add_words(word for row in rows for word in row),
        "word_set": layout.add_set(expression_set(r"\w")),
        "space_set": layout.add_set(spaces),
    }


def _affixes(engine: Any, layout: Layout) -> dict[str, int]:
    """Tokens that the model wants before and after a text, as one encoding shows them."""
    plain = engine.encode("a", add_special_tokens=False).ids
    whole = engine.encode("a", add_special_tokens=True).ids
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            before, after = whole[:start], whole[start + len(plain) :]
            return {"before": layout.add_words(before), "after": layout.add_words(after)}
    raise UnsupportedError("the tokenizer's post-processor changes tokens: not supported")
