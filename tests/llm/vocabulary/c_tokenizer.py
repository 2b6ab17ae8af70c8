"""The C tokenizer through ctypes, compiled once; and its comparison with `tokenizers`."""

from __future__ import annotations

import ctypes
import functools
import random
import tempfile
from pathlib import Path

import c_compiler
import tokenizers
import toy_tokenizers

from graphc.artifact import RUNTIME
from graphc.llm.vocabulary.compile import compile_vocabulary
from graphc.native import ErrorRecord

FOLDER = RUNTIME / "tokenizer"


@functools.cache
def library() -> ctypes.CDLL:
    output = Path(tempfile.mkdtemp(prefix="graphc-tokenizer-")) / "tokenizer.so"
    flags = ["-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    c_compiler.compile_c([*flags, *sorted(FOLDER.glob("*.c")), RUNTIME / "error.c"], output)
    loaded = ctypes.CDLL(str(output))
    loaded.gc_vocabulary_open.restype = ctypes.c_void_p
    loaded.gc_vocabulary_encode.restype = ctypes.c_int64
    loaded.gc_vocabulary_text.restype = ctypes.c_void_p
    return loaded


class Refused(Exception):
    """What the C side answered."""


class CTokenizer:
    """One compiled vocabulary."""

    def __init__(self, data: bytes) -> None:
        self._error = ErrorRecord()
        with tempfile.NamedTemporaryFile(suffix=".bin") as file:
            file.write(data)
            file.flush()
            handle = library().gc_vocabulary_open(file.name.encode(), ctypes.byref(self._error))
        if not handle:
            raise Refused(self._error.message.decode())
        self._handle = ctypes.c_void_p(handle)

    def close(self) -> None:
        library().gc_vocabulary_close(self._handle)

    def encode(self, text: str | bytes, special: bool = True, room: int = 4096) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        tokens = (ctypes.c_int32 * room)()
        count = library().gc_vocabulary_encode(
            self._handle,
            data,
            ctypes.c_size_t(len(data)),
            int(special),
            tokens,
            ctypes.c_int64(room),
            ctypes.byref(self._error),
        )
        if count < 0:
            raise Refused(self._error.message.decode())
        return tokens[:count] if count <= room else self.encode(text, special, count)

    def decode(self, tokens: list[int]) -> str:
        parts: list[bytes] = []
        size = ctypes.c_size_t()
        for token in tokens:
            text = library().gc_vocabulary_text(
                self._handle, token, int(not parts), ctypes.byref(size)
            )
            if text:
                parts.append(ctypes.string_at(text, size.value))
        return b"".join(parts).decode("utf-8", "replace")


def compare(tokenizer: tokenizers.Tokenizer, count: int, seed: int | None = None) -> int:
    """Encode `count` strings both ways; AssertionError with the first that differs."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    ours = CTokenizer(compile_vocabulary(tokenizer.to_str()))
    source = random.Random(seed)
    spellings = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    for _ in range(count):
        text = toy_tokenizers.random_text(source)
        if spellings and source.random() < 0.2:
            text = text.replace(" ", f" {source.choice(spellings)} ", 1)
        expected = tokenizer.encode(text).ids
        actual = ours.encode(text)
        assert actual == expected, (text, [hex(ord(c)) for c in text], actual, expected)
        if "\ufffd" not in tokenizer.decode(expected):
            assert ours.decode(expected) == tokenizer.decode(expected), (text, expected)
    ours.close()
    return count
