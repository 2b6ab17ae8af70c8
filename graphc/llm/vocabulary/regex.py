"""Regular expressions of pre-tokenizers, as a program for a small backtracking machine in C.

The dialect is Oniguruma's as far as tokenizers use it: classes, groups, alternatives, greedy, lazy
and possessive repeats, case folding in groups, looking ahead, and looking behind at one character.
A class is asked of the library itself, so that its members are exact.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from graphc.errors import UnsupportedError
from graphc.llm.vocabulary.layout import Layout
from graphc.llm.vocabulary.probe import expression_set

# Operations of regex.c; each has up to three operands.
DONE, SET, SPAN, SPLIT, JUMP, AHEAD, NOT_AHEAD, ATOMIC, BEHIND, NOT_BEHIND, BEGIN, END = range(12)
ANY_NUMBER: Final = 0x7FFFFFFF
_MAX_COPIES: Final = 64
_ESCAPE: Final = re.compile(
    r"\\(?:[pP]\{\^?\w+\}|x\{[0-9a-fA-F]+\}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL
)
_REPEAT: Final = re.compile(r"(?:\*|\+|\?|\{(\d*)(,?)(\d*)\})([?+]?)")

Code: TypeAlias = list[tuple[int, int, int, int]]


@dataclass
class _Repeat:
    low: int
    high: int
    mode: str  # "", "?" lazy, "+" possessive


@dataclass
class _Parser:
    """Reads the pattern from left to right and emits code with addresses from 0."""

    pattern: str
    layout: Layout
    at: int = 0
    fold: list[bool] = field(default_factory=lambda: [False])

    def alternatives(self) -> Code:
        code = self._sequence()
        while self._take("|"):
            other = self._sequence()
            skip = len(code) + 2
            code = [
                (SPLIT, 1, skip, 0),
                *_moved(code, 1),
                (JUMP, skip + len(other), 0, 0),
                *_moved(other, skip),
            ]
        return code

    def _sequence(self) -> Code:
        code: Code = []
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            atom = self._atom()
            repeat = self._repeat()
            code += _moved(self._repeated(atom, repeat) if repeat else atom, len(code))
        return code

    def _atom(self) -> Code:
        if self._take("(?i)"):
            self.fold[-1] = True
            return []
        if self._take("("):
            return self._group()
        if self._take(r"\A"):
            return [(BEGIN, 0, 0, 0)]
        if self._take(r"\z"):
            return [(END, 0, 0, 0)]
        return [(SET, self._single(), 0, 0)]

    def _group(self) -> Code:
        if not self._take("?"):
            return self._until_closed(False)
        for begin, operation in (("=", AHEAD), ("!", NOT_AHEAD), (">", ATOMIC)):
            if self._take(begin):
                inner = [*self._until_closed(False), (DONE, 0, 0, 0)]
                return [(operation, 1 + len(inner), 0, 0), *_moved(inner, 1)]
        for begin, operation in (("<=", BEHIND), ("<!", NOT_BEHIND)):
            if self._take(begin):
                single = self._single()
                self._expect(")")
                return [(operation, single, 0, 0)]
        if self._take("i:"):
            return self._until_closed(True)
        if self._take(":"):
            return self._until_closed(False)
        raise self._unsupported()

    def _until_closed(self, fold: bool) -> Code:
        self.fold.append(fold or self.fold[-1])
        code = self.alternatives()
        self._expect(")")
        self.fold.pop()
        return code

    def _single(self) -> int:
        """An expression for one character, as the section of the set that it matches."""
        start = self.at
        if self._take("["):
            self._class()
        elif self.pattern.startswith("\\", start):
            escape = _ESCAPE.match(self.pattern, start)
            if escape is None or escape[0][1] in "bBGZkgKRX123456789":
                raise self._unsupported()
            self.at = escape.end()
        elif start >= len(self.pattern) or self.pattern[start] in "^$*+?{)":
            raise self._unsupported()
        else:
            self.at += 1
        text = self.pattern[start : self.at]
        return self.layout.add_set(expression_set(f"(?i:{text})" if self.fold[-1] else text))

    def _class(self) -> None:
        """Move behind the bracket that closes a class."""
        self._take("^")
        self._take("]")
        while not self._take("]"):
            if self.at >= len(self.pattern):
                raise self._unsupported()
            if self._take("[:"):
                self.at = self.pattern.index(":]", self.at) + 2
            elif self._take("["):
                self._class()
            else:
                self.at += 2 if self.pattern[self.at] == "\\" else 1

    def _repeat(self) -> _Repeat | None:
        found = _REPEAT.match(self.pattern, self.at)
        if found is None:
            return None
        self.at = found.end()
        sign, mode = found[0][0], found[4]
        if sign != "{":
            low, high = {"*": (0, ANY_NUMBER), "+": (1, ANY_NUMBER), "?": (0, 1)}[sign]
            return _Repeat(low, high, mode)
        if mode == "+":  # Oniguruma reads {2,3}+ as a repeat of a repeat
            raise self._unsupported()
        low = int(found[1] or 0)
        high = int(found[3]) if found[3] else (ANY_NUMBER if found[2] else low)
        return _Repeat(low, high, mode)

    def _repeated(self, atom: Code, repeat: _Repeat) -> Code:
        low, high, mode = repeat.low, repeat.high, repeat.mode
        if mode == "+":
            inner = [*self._repeated(atom, _Repeat(low, high, "")), (DONE, 0, 0, 0)]
            return [(ATOMIC, 1 + len(inner), 0, 0), *_moved(inner, 1)]
        if len(atom) == 1 and atom[0][0] == SET and not mode:
            return [(SPAN, atom[0][1], low, high)]
        if max(low, 0 if high == ANY_NUMBER else high) > _MAX_COPIES:
            raise self._unsupported()
        code: Code = []
        for _ in range(low):
            code += _moved(atom, len(code))
        if high == ANY_NUMBER:
            size = len(atom)
            loop = [_split(1, size + 2, mode), *_moved(atom, 1), (JUMP, 0, 0, 0)]
            return code + _moved(loop, len(code))
        end = len(code) + (high - low) * (len(atom) + 1)
        for _ in range(high - low):
            code.append(_split(len(code) + 1, end, mode))
            code += _moved(atom, len(code))
        return code

    def _take(self, text: str) -> bool:
        found = self.pattern.startswith(text, self.at)
        self.at += len(text) if found else 0
        return found

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self._unsupported()

    def _unsupported(self) -> UnsupportedError:
        return UnsupportedError(
            f"the pre-tokenizer's pattern is not supported from {self.pattern[self.at :]!r:.40} on "
            f"(in {self.pattern!r:.80}): text goes through Python's tokenizer only"
        )


def compile_regex(pattern: str, layout: Layout) -> int:
    """The section with the program for `pattern`; its sets become sections too."""
    parser = _Parser(pattern, layout)
    code = parser.alternatives()
    if parser.at != len(pattern):
        raise parser._unsupported()
    return add_program(code, layout)


def add_program(code: Sequence[tuple[int, int, int, int]], layout: Layout) -> int:
    return layout.add_words(word for line in (*code, (DONE, 0, 0, 0)) for word in line)


def _split(first: int, second: int, mode: str) -> tuple[int, int, int, int]:
    """Try one address first, then the other; a lazy repeat would rather leave."""
    return (SPLIT, second, first, 0) if mode == "?" else (SPLIT, first, second, 0)


def _moved(code: Code, by: int) -> Code:
    """The same code at another address."""
    result: Code = []
    for operation, a, b, c in code:
        if operation == SPLIT:
            a, b = a + by, b + by
        elif operation in (JUMP, AHEAD, NOT_AHEAD, ATOMIC):
            a += by
        result.append((operation, a, b, c))
    return result
