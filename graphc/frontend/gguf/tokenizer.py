"""The tokenizer that a GGUF file describes -> tokenizer.json and what goes with it.

gpt2   byte-level BPE: merges are in the file, how text is cut before is named in it
llama  SentencePiece BPE: merges follow from the scores of the pieces
bert   WordPiece        t5  SentencePiece unigram
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import Any, Final

from graphc.errors import ModelError, UnsupportedError
from graphc.frontend.gguf.pre_tokenizers import PRE_TOKENIZERS
from graphc.frontend.gguf.reader import GgufFile

_SPACE = "\u2581"
_PREFIX = "tokenizer.ggml."
_ROLES: Final = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
_ENDS: Final = ("eos", "eot", "eom")
# Spellings that end a turn of a chat, whatever the metadata say.
_END_SPELLINGS: Final = frozenset(
    {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|eom_id|>", "<|end_of_text|>"}
    | {"<|endoftext|>", "<|return|>", "<EOT>", "<|end_of_turn|>"}
)


class Kind(IntEnum):
    """What `tokenizer.ggml.token_type` says of a token."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Vocabulary:
    """The tokens of a file, checked."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.tokens: list[str] = self._list("tokens", str)
        count = len(self.tokens)
        self.scores: list[float] = self._list("scores", float, count) or [0.0] * count
        kinds = self._list("token_type", int, count) or [Kind.NORMAL] * count
        self.kinds: list[int] = kinds
        self.ids = {token: number for number, token in enumerate(self.tokens)}

    def _list(self, key: str, kind: type, count: int | None = None) -> list[Any]:
        found = self.file.value(_PREFIX + key, list, [])
        if not all(isinstance(item, kind) for item in found):
            raise ModelError(f"{self.file.path}: {_PREFIX}{key} is no list of {kind.__name__}")
        if found and count is not None and len(found) != count:
            raise ModelError(
                f"{self.file.path}: {_PREFIX}{key} has {len(found)} entries for {count} tokens"
            )
        return list(found)

    def merges(self) -> list[tuple[str, str]]:
        """The pairs that BPE joins, first ones first; those that make no token are left out."""
        pairs = []
        for text in self._list("merges", str):
            left, _, right = text.partition(" ") if not text.startswith(" ") else ("", "", "")
            if left in self.ids and right in self.ids and left + right in self.ids:
                pairs.append((left, right))
        return pairs

    def role(self, role: str) -> int | None:
        """The number of the token with a role, such as "bos"."""
        number = self.file.value(f"{_PREFIX}{_ROLES.get(role, role)}_token_id", int)
        if number is None or number == 0xFFFFFFFF:
            return None
        if not 0 <= number < len(self.tokens):
            raise ModelError(f"{self.file.path}: {role} is token {number} of {len(self.tokens)}")
        return int(number)

    def spelled(self, role: str) -> str | None:
        """The spelling of the token with a role."""
        number = self.role(role)
        return None if number is None else self.tokens[number]

    def flag(self, key: str, default: bool) -> bool:
        return bool(self.file.value(_PREFIX + key, bool, default))


def companions(file: GgufFile) -> dict[str, bytes]:
    """tokenizer.json, tokenizer_config.json, generation_config.json and the chat template.

    Empty for a file without a vocabulary. UnsupportedError for a kind of tokenizer, or a way to cut
    text, that is not known.
    """
    kind = file.value(f"{_PREFIX}model", str, "none")
    vocabulary = Vocabulary(file)
    if kind in ("none", "no_vocab") or not vocabulary.tokens:
        return {}
    if kind not in _BUILDERS:
        raise UnsupportedError(
            f"{file.path}: tokenizers of kind {kind!r} are not known, only {', '.join(_BUILDERS)}"
        )
    found = {
        "tokenizer.json": _BUILDERS[kind](vocabulary).to_str().encode(),
        "tokenizer_config.json": _json(_config(vocabulary, kind)),
        "generation_config.json": _json(_generation(vocabulary)),
    }
    template = file.value("tokenizer.chat_template", str)
    if template:
        found["chat_template.jinja"] = template.encode("utf-8", "surrogateescape")
    return found


def _json(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False, indent=1).encode("utf-8", "surrogatepass")


def _config(vocabulary: Vocabulary, kind: str) -> dict[str, Any]:
    named = {f"{role}_token": vocabulary.spelled(role) for role in _ROLES}
    length = vocabulary.file.value("general.architecture", str, "") + ".context_length"
    config = {name: text for name, text in named.items() if text is not None}
    return {
        **config,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": _adds(vocabulary, "bos", kind),
        "add_eos_token": _adds(vocabulary, "eos", kind),
        "model_max_length": vocabulary.file.value(length, int, 1 << 30),
        "clean_up_tokenization_spaces": False,
    }


def _generation(vocabulary: Vocabulary) -> dict[str, Any]:
    ends = [vocabulary.role(role) for role in _ENDS]
    ends += [
        number
        for number, token in enumerate(vocabulary.tokens)
        if token in _END_SPELLINGS and vocabulary.kinds[number] == Kind.CONTROL
    ]
    record: dict[str, Any] = {"eos_token_id": list(dict.fromkeys(e for e in ends if e is not None))}
    for role in ("bos", "pad"):
        number = vocabulary.role(role)
        if number is not None:
            record[f"{role}_token_id"] = number
    return record


def _adds(vocabulary: Vocabulary, role: str, kind: str) -> bool:
    """Whether a text is put between the tokens of its beginning and end."""
    usual = {"bos": kind in ("llama", "bert"), "eos": kind in ("bert", "t5")}[role]
    return vocabulary.flag(f"add_{role}_token", usual) and vocabulary.role(role) is not None


# -- one builder for each kind ---------------------------------------------------------------


def _byte_level(vocabulary: Vocabulary) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    name = vocabulary.file.value(f"{_PREFIX}pre", str, "")
    if name not in PRE_TOKENIZERS:
        raise UnsupportedError(
            f"{vocabulary.file.path}: {_PREFIX}pre is {name!r}, a way to cut text that graphc does "
            "not know: put the model's own tokenizer.json into the artifact"
        )
    rule = PRE_TOKENIZERS[name]
    model = models.BPE(vocabulary.ids, vocabulary.merges(), ignore_merges=rule.whole_words)
    tokenizer = Tokenizer(model)
    if rule.normalise:
        tokenizer.normalizer = normalizers.NFC()
    cuts = [pre_tokenizers.Split(Regex(cut), "isolated") for cut in rule.cuts]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    return _finished(tokenizer, vocabulary, "gpt2")


def _sentence_piece(vocabulary: Vocabulary) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    model = models.BPE(
        vocabulary.ids,
        list(_pairs(vocabulary)),
        unk_token=vocabulary.spelled("unk") or vocabulary.tokens[0],
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    prefixed = vocabulary.flag("add_space_prefix", True)
    steps = [normalizers.Prepend(_SPACE)] if prefixed else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    decoded = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*decoded, *([decoders.Strip(" ", 1, 0)] * prefixed)])
    return _finished(tokenizer, vocabulary, "llama")


def _pairs(vocabulary: Vocabulary) -> Iterator[tuple[str, str]]:
    """All pairs of pieces that make a piece, those of the best scores first."""
    ids, found = vocabulary.ids, []
    for number, token in enumerate(vocabulary.tokens):
        if vocabulary.kinds[number] not in (Kind.NORMAL, Kind.USER_DEFINED):
            continue
        cuts = ((token[:at], token[at:]) for at in range(1, len(token)))
        known = [(ids[left], ids[right]) for left, right in cuts if left in ids and right in ids]
        found += [(-vocabulary.scores[number], number, *pair) for pair in sorted(known)]
    for _, _, left, right in sorted(found, key=lambda entry: entry[0]):
        yield vocabulary.tokens[left], vocabulary.tokens[right]


def _word_piece(vocabulary: Vocabulary) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    spelled = {_word_part(vocabulary, number): number for number in range(len(vocabulary.tokens))}
    unknown = vocabulary.spelled("unk") or "[UNK]"
    lower = "[CLS]" in spelled and "##A" not in spelled and "A" not in spelled
    tokenizer = Tokenizer(models.WordPiece(spelled, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return _finished(tokenizer, vocabulary, "bert")


def _word_part(vocabulary: Vocabulary, number: int) -> str:
    """ggml marks where words begin; WordPiece marks where they go on."""
    token = vocabulary.tokens[number]
    if vocabulary.kinds[number] != Kind.NORMAL or token.startswith("["):
        return token
    return token.removeprefix(_SPACE) if token.startswith(_SPACE) else f"##{token}"


def _unigram(vocabulary: Vocabulary) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    pieces = list(zip(vocabulary.tokens, vocabulary.scores, strict=True))
    tokenizer = Tokenizer(models.Unigram(pieces, vocabulary.role("unk"), byte_fallback=False))
    steps: list[Any] = []
    table = vocabulary.file.value(f"{_PREFIX}precompiled_charsmap", list)
    if table:
        steps.append(normalizers.Precompiled(bytes(table)))
    if vocabulary.flag("remove_extra_whitespaces", True):
        steps += [normalizers.Strip(left=False), normalizers.Replace(Regex(" {2,}"), _SPACE)]
    tokenizer.normalizer = normalizers.Sequence(steps)
    scheme = "always" if vocabulary.flag("add_space_prefix", True) else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, scheme)
    tokenizer.decoder = decoders.Metaspace(_SPACE, scheme)
    return _finished(tokenizer, vocabulary, "t5")


def _finished(tokenizer: Any, vocabulary: Vocabulary, kind: str) -> Any:
    """With the tokens that text never makes, and those that are put around it."""
    from tokenizers import AddedToken, processors

    special, known = [], []
    for token, number in zip(vocabulary.tokens, vocabulary.kinds, strict=True):
        if number in (Kind.CONTROL, Kind.UNKNOWN):
            special.append(AddedToken(token, special=True, normalized=False))
        elif number == Kind.USER_DEFINED:
            known.append(AddedToken(token, special=False, normalized=False))
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(known)
    first, last = (
        vocabulary.spelled(role) if _adds(vocabulary, role, kind) else None
        for role in ("bos", "eos")
    )
    if first or last:
        around = [text for text in (first, "$A", last) if text]
        roles = [(text, vocabulary.ids[text]) for text in (first, last) if text]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=around, pair=[*around, *(f"{t}:1" for t in around)], special_tokens=roles
        )
    return tokenizer


_BUILDERS: Final[Mapping[str, Callable[[Vocabulary], Any]]] = {
    "gpt2": _byte_level,
    "llama": _sentence_piece,
    "bert": _word_piece,
    "t5": _unigram,
}
