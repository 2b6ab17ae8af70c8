"""Tokens in, text out as it becomes certain: whole characters, and nothing past a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

_BROKEN: Final = "�"
# A character has at most four bytes, and each may be a token of its own, but some decoders break
# whole runs of bytes while the last is incomplete. A run this long was never going to be text.
_LONGEST_WAIT: Final = 32


class Detokenizer:
    """Decodes token by token so that the pieces join to what decoding at once gives.

    A decoder may look at neighbours (a leading space, bytes of one character), so a window is
    decoded each time that begins at the last place where the text was whole. `context` are the
    tokens before the first one.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], context: Sequence[int] = ()) -> None:
        self._decode = decode
        self._window = list(context)  # the last whole stretch, then the tokens since
        self._whole = len(self._window)  # tokens of the window that are that stretch
        self._emitted = len(decode(self._window)) if self._window else 0  # characters given out

    def push(self, token: int) -> str:
        """The text that is certain now and was not before."""
        self._window.append(token)
        text = self._decode(self._window)
        whole = text.rstrip(_BROKEN)
        if whole != text and len(self._window) - self._whole < _LONGEST_WAIT:
            fresh = whole[self._emitted :]
            self._emitted = max(self._emitted, len(whole))
            return fresh
        fresh = text[self._emitted :]
        self._emitted = len(text)
        stretch = self._window[self._whole :]
        if visible := self._decode(stretch):  # else the words before it stay the context
            self._window, self._emitted = stretch, len(visible)
        self._whole = len(self._window)
        return fresh

    def finish(self) -> str:
        """What was held back: broken characters at the very end."""
        return self._decode(self._window)[self._emitted :] if self._window else ""


class StopStrings:
    """Lets text through up to the first stop string, wherever the borders of its pieces lie."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.hit: str | None = None

    def push(self, text: str) -> str:
        """The text that cannot be part of a stop string any more."""
        self._held += text
        found = [(place, stop) for stop in self._stops if (place := self._held.find(stop)) >= 0]
        if found:
            place, self.hit = min(found)
            passed, self._held = self._held[:place], ""
            return passed
        keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        passed = self._held[: len(self._held) - keep]
        self._held = self._held[len(self._held) - keep :]
        return passed

    def finish(self) -> str:
        passed, self._held = self._held, ""
        return passed


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that a stop string begins with."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


class TextStream:
    """One answer's text: a detokenizer, and its stop strings behind it."""

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stops: Sequence[str] = (),
        context: Sequence[int] = (),
    ) -> None:
        self._detokenizer = Detokenizer(decode, context)
        self._stops = StopStrings(stops)

    def push(self, token: int) -> str:
        return self._stops.push(self._detokenizer.push(token))

    @property
    def stopped(self) -> bool:
        """A stop string has come; what it was is nobody's text."""
        return self._stops.hit is not None

    def finish(self) -> str:
        """The rest of the text, when no stop string came."""
        if self.stopped:
            return ""
        last = self._stops.push(self._detokenizer.finish())
        return last if self.stopped else last + self._stops.finish()
