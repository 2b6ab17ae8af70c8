"""The C tokenizer equals `tokenizers` on strings of many scripts; damaged files are refused."""

# ruff: noqa: RUF001 (letters that look alike are what this is about)
from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import toy_tokenizers
from c_compiler import compile_c, system_compiler
from c_tokenizer import FOLDER, CTokenizer, Refused, compare
from support import Models
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from graphc.artifact import RUNTIME
from graphc.errors import ArtifactError, UnsupportedError
from graphc.frontend import companions
from graphc.llm.vocabulary.compile import compile_vocabulary

COUNT = 400
# Patterns as models publish them.
PATTERNS = {
    "cl100k": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "o200k": (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "possessive": (r"\p{N}{1,3}|[^\r\n\p{L}\p{N}]?+\p{L}++|\s++|(?<!\s)-+?|(?>a|ab)(?=c)|."),
    "class sets": r"[一-龥぀-ゟ゠-ヿ]+|[!-/:-~]*[A-Za-z]{2,}|(?:\r?\n)*[^\S\n]+?|[\s\S]",
}


@pytest.mark.parametrize("kind", toy_tokenizers.KINDS)
def test_every_model(kind: str) -> None:
    compare(toy_tokenizers.KINDS[kind](), COUNT)


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns(name: str) -> None:
    tokenizer = toy_tokenizers.byte_level_bpe()
    cut = pre_tokenizers.Split(Regex(PATTERNS[name]), "isolated")
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, last])
    compare(tokenizer, COUNT)


def _normalized(*steps: normalizers.Normalizer) -> Callable[[], Tokenizer]:
    def make() -> Tokenizer:
        tokenizer = toy_tokenizers.byte_level_bpe()
        tokenizer.normalizer = normalizers.Sequence(list(steps))
        return tokenizer

    return make


def _cut(*steps: pre_tokenizers.PreTokenizer) -> Callable[[], Tokenizer]:
    def make() -> Tokenizer:
        tokenizer = toy_tokenizers.unigram()
        tokenizer.normalizer = None
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(steps))
        return tokenizer

    return make


N, C = normalizers, pre_tokenizers
VARIANTS = {
    "nfc": _normalized(N.NFC()),
    "nfkc": _normalized(N.NFKC()),
    "nfd": _normalized(N.NFD(), N.StripAccents(), N.Lowercase()),
    "nfkd": _normalized(N.NFKD(), N.Strip(), N.Prepend("x")),
    "replace": _normalized(
        N.Replace(Regex(" {2,}"), " "), N.Replace("ab", ""), N.Replace(".", "é")
    ),
    "strip": _normalized(N.Strip(left=False, right=True), N.BertNormalizer(lowercase=False)),
    "digits": _cut(C.Digits(individual_digits=True), C.WhitespaceSplit()),
    "more digits": _cut(C.Digits(individual_digits=False), C.Metaspace(prepend_scheme="first")),
    "punctuation": _cut(C.Punctuation("merged_with_previous"), C.Metaspace(prepend_scheme="never")),
    "delimiter": _cut(C.CharDelimiterSplit("e"), C.Split("t", "merged_with_next")),
    "contiguous": _cut(C.Punctuation("contiguous"), C.Split(Regex(r"\s"), "removed", invert=False)),
    "inverted": _cut(C.Split(Regex(r"\p{L}+"), "removed", invert=True), C.Metaspace(split=False)),
    "whitespace": _cut(C.Whitespace(), C.BertPreTokenizer()),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_normalizers_and_pre_tokenizers(name: str) -> None:
    compare(VARIANTS[name](), COUNT)


def test_added_tokens() -> None:
    tokenizer = toy_tokenizers.byte_level_bpe()
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.add_special_tokens(["<a>", "<a>b", AddedToken("<l>", lstrip=True), "<A>"])
    tokenizer.add_tokens(
        [
            AddedToken("The", single_word=True, normalized=False),
            AddedToken("<R>", rstrip=True, normalized=True),
            AddedToken("both", lstrip=True, rstrip=True, normalized=True),
        ]
    )
    compare(tokenizer, COUNT)
    ours = CTokenizer(compile_vocabulary(tokenizer.to_str()))
    for text in ("The Then The", " <l> <R> x", "a both both  ", "<a>b<a>", "<r> <R>The", "BOTH"):
        assert ours.encode(text) == tokenizer.encode(text).ids, text


def test_merges_of_whole_words_and_suffixes() -> None:
    tokenizer = Tokenizer(
        models.BPE(
            vocab={"a": 0, "b": 1, "ab": 2, "c</w>": 3, "abc</w>": 4, "<u>": 5, "bc</w>": 6},
            merges=[("a", "b"), ("b", "c</w>"), ("ab", "c</w>")],
            end_of_word_suffix="</w>",
            unk_token="<u>",
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    ours = CTokenizer(compile_vocabulary(tokenizer.to_str()))
    source = random.Random()
    for _ in range(300):
        text = "".join(source.choice("abcx ") for _ in range(source.randrange(1, 12)))
        assert ours.encode(text) == tokenizer.encode(text).ids, text


@pytest.mark.parametrize(("model", "name"), [("minilm", "WordPiece"), ("title encoder", "Unigram")])
def test_real_tokenizers(models: Models, model: str, name: str) -> None:
    (place,) = models.folder(model).rglob("tokenizer.json")
    assert json.loads(place.read_text())["model"]["type"] == name
    compare(Tokenizer.from_file(str(place)), 2 * COUNT)


def test_a_tokenizer_rebuilt_from_gguf(models: Models) -> None:
    (place,) = models.folder("smollm2").rglob("*.gguf")
    text = companions(place)["tokenizer.json"].decode()
    compare(Tokenizer.from_str(text), COUNT)


def test_long_texts_and_odd_ones() -> None:
    for tokenizer in (toy_tokenizers.sentencepiece_bpe(), toy_tokenizers.byte_level_bpe()):
        ours = CTokenizer(compile_vocabulary(tokenizer.to_str()))
        source = random.Random(1)
        long = "".join(toy_tokenizers.random_text(source) for _ in range(300))
        for text in (long, " " * 20000, "a" * 20000, "\n" * 5000 + "x", "", "\0", "\0a\0"):
            assert ours.encode(text) == tokenizer.encode(text).ids
        with pytest.raises(Refused, match="byte 2 is 0xff"):
            ours.encode(b"ab\xffcd")
        for broken in (b"\xed\xa0\x80", b"\xc0\x80", b"\xf5\x80\x80\x80", b"\xe4\xb8"):
            with pytest.raises(Refused, match="not UTF-8"):
                ours.encode(broken)
        ours.close()


def test_a_pattern_that_takes_too_long_is_an_error() -> None:
    tokenizer = toy_tokenizers.byte_level_bpe()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"(?:a|aa|a{2,})+b"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    ours = CTokenizer(compile_vocabulary(tokenizer.to_str()))
    assert ours.encode("xaab") == tokenizer.encode("xaab").ids
    with pytest.raises(Refused, match="steps"):
        ours.encode("a" * 200)


def test_what_only_python_can_do_says_so() -> None:
    tokenizer = toy_tokenizers.byte_level_bpe()
    for step in (Regex(r"(a)\1"), Regex(r"\bx"), Regex(r"^x")):
        tokenizer.pre_tokenizer = pre_tokenizers.Split(step, "isolated")
        with pytest.raises(UnsupportedError, match="not supported"):
            compile_vocabulary(tokenizer.to_str())
    tokenizer.pre_tokenizer = pre_tokenizers.UnicodeScripts()
    with pytest.raises(UnsupportedError, match="UnicodeScripts"):
        compile_vocabulary(tokenizer.to_str())
    for text in ("{", "{}"):
        with pytest.raises(ArtifactError, match="damaged"):
            compile_vocabulary(text)


@pytest.mark.skipif(system_compiler() is None, reason="needs gcc or clang: apt install gcc")
def test_damaged_files_under_the_sanitizers(tmp_path: Path) -> None:
    """Refused or read, but never past what there is; a minute of it runs with --count."""
    flags = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    here = Path(__file__).with_name("fuzz.c")
    sources = [here, *sorted(FOLDER.glob("*.c")), RUNTIME / "error.c"]
    program = compile_c([*flags, *sources], tmp_path / "fuzz")
    text = tmp_path / "text"
    text.write_text(
        "".join(toy_tokenizers.random_text(random.Random(seed)) for seed in range(8)) + "<s> </s>"
    )
    kinds = {**toy_tokenizers.KINDS, "nfkc": VARIANTS["nfkc"], "replace": VARIANTS["replace"]}
    for seed, make in enumerate(kinds.values()):
        vocabulary = tmp_path / "vocabulary.bin"
        vocabulary.write_bytes(compile_vocabulary(make().to_str()))
        command = [program, vocabulary, tmp_path / "damaged.bin", text, 300, seed + 1]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        assert int(done.stdout.split()[0]) > 0, "nothing was read at all"
