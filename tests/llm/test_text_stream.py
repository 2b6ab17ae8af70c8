"""Text as it becomes certain: equal to decoding at once, whole characters, stop strings found."""

from __future__ import annotations

import random

import pytest
import toy_tokenizers
from hypothesis import given
from hypothesis import strategies as st

from graphc.llm.text_stream import Detokenizer, StopStrings, TextStream


@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece", "unigram"])
def test_pieces_join_to_the_whole_text(kind: str) -> None:
    tokenizer = toy_tokenizers.KINDS[kind]()
    source = random.Random()
    for _ in range(200):
        ids = tokenizer.encode(toy_tokenizers.random_text(source)).ids
        split = source.randrange(len(ids) + 1)
        stream = Detokenizer(tokenizer.decode, ids[max(0, split - 6) : split])
        pieces = [stream.push(token) for token in ids[split:]]
        if not any("\ufffd" in tokenizer.decode(ids[n:]) for n in (0, max(0, split - 6), split)):
            assert not any("\ufffd" in piece for piece in pieces)
            whole, before = tokenizer.decode(ids), tokenizer.decode(ids[:split])
            assert before + "".join(pieces) + stream.finish() == whole


def test_random_tokens_never_lose_text() -> None:
    """Broken characters come out as such, and nothing waits for ever."""
    tokenizer = toy_tokenizers.byte_level_bpe()
    source = random.Random()
    for _ in range(100):
        ids = [source.randrange(2, 258) for _ in range(60)]
        stream = Detokenizer(tokenizer.decode)
        text = ""
        for place, token in enumerate(ids):
            text += stream.push(token)
            whole = tokenizer.decode(ids[: place + 1])
            assert len(text) <= len(whole) + 8
        assert (text + stream.finish()).replace("\ufffd", "") == whole.replace("\ufffd", "")


@given(
    text=st.text("abc", max_size=30),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    data=st.data(),
)
def test_stop_strings_over_any_borders(text: str, stops: list[str], data: st.DataObject) -> None:
    ends = [place + len(stop) for stop in stops if (place := text.find(stop)) >= 0]
    matcher = StopStrings(stops)
    passed, rest = "", text
    while rest and matcher.hit is None:
        cut = data.draw(st.integers(1, len(rest)))
        passed += matcher.push(rest[:cut])
        rest = rest[cut:]
    if matcher.hit is None:
        assert not ends and passed + matcher.finish() == text
        return
    assert ends and text.startswith(passed + matcher.hit)
    assert all(stop not in passed for stop in stops)


def test_text_that_begins_like_a_stop_string_comes_in_the_end() -> None:
    words = ["ab", "c#", "#", "d"]
    stream = TextStream(lambda ids: "".join(words[i] for i in ids), ["###"])
    assert [stream.push(n) for n in (0, 1, 2, 3, 1)] == ["ab", "c", "", "##d", "c"]
    assert stream.finish() == "#" and not stream.stopped
    stopping = TextStream(lambda ids: "".join(words[i] for i in ids), ["##d"])
    assert [stopping.push(n) for n in (1, 2, 3)] == ["c", "", ""]
    assert stopping.stopped and stopping.finish() == ""
