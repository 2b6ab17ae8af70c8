"""graphc.LLM over a fake model and a small tokenizer: text at both ends, streams, scores."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from fake_model import FakeModel

import graphc
from graphc.errors import ArtifactError, InputError, UnsupportedError
from graphc.llm.llm import LLM
from graphc.llm.sampling import SamplingParams


@pytest.fixture
def llm(folder: Path) -> LLM:
    return LLM(folder, model=FakeModel(vocabulary=600, pages=200))


def test_the_public_name() -> None:
    assert graphc.LLM is LLM and graphc.SamplingParams is SamplingParams


def test_one_prompt_and_a_list(llm: LLM) -> None:
    answer = llm.generate("The quick", max_tokens=20, temperature=0)
    assert answer.finish_reason in ("length", "stop") and len(answer.token_ids) <= 20
    ids = llm.tokenizer.encode("The quick")
    visible = [t for t in answer.token_ids if t != 1]
    whole = llm.tokenizer.decode(ids + visible).removeprefix("The quick")
    assert str(answer) == answer.text == whole
    several = llm.generate(["The quick", ids, "fox"], max_tokens=20, temperature=0)
    assert [several[0].text, several[1].text] == [answer.text] * 2 != [several[2].text] * 2
    assert several[0].prompt_tokens == len(ids)


def test_stream_and_chat_give_the_same_text(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    streamed = "".join(map(str, llm.stream(messages=messages, max_tokens=9, temperature=0)))
    answer = llm.chat(messages, max_tokens=9, temperature=0)
    by_hand = llm.generate(
        llm.tokenizer.encode("<s>user: Hello<s>assistant:", special=False),
        max_tokens=9,
        temperature=0,
    )
    assert streamed == answer.text == by_hand.text


def test_stop_strings_end_the_text_and_not_the_tokens(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    full = llm.generate("fox", params)
    text = full.text.replace("\ufffd", " ")
    stop = next(text[n : n + 3] for n in range(8, len(text)) if " " not in text[n : n + 3])
    stopped = llm.generate("fox", params, stop=[stop, "never there"])
    assert stopped.finish_reason == "stop"
    assert stopped.text == full.text[: full.text.index(stop)]
    assert full.token_ids[: len(stopped.token_ids)] == stopped.token_ids != full.token_ids


def test_leaving_a_stream_gives_the_pages_back(llm: LLM) -> None:
    stream = llm.stream("fox", max_tokens=50)
    next(stream)
    assert llm.model.pages_free < llm.model.pages_total
    stream.close()
    assert llm.model.pages_free == llm.model.pages_total


def test_logits_and_scores(llm: LLM) -> None:
    ids = list(np.random.default_rng().integers(0, 600, 150))
    logits = llm.logits(ids)
    assert logits.shape == (150, 600)
    fake = FakeModel(vocabulary=600)
    np.testing.assert_array_equal(logits[70], fake._logits(np.asarray(ids[:71]).tolist()))
    plain = logits[:-1].astype(np.float64)
    expected = plain - np.log(np.exp(plain).sum(axis=1, keepdims=True))
    assert llm.score(ids) == pytest.approx(expected[np.arange(149), ids[1:]])
    assert llm.model.pages_free == llm.model.pages_total


def test_generation_config(folder: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    config = {"eos_token_id": [5, 6], "temperature": 0.6, "top_p": 0.9, "top_k": 40}
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    llm = LLM(tmp_path, model=FakeModel(vocabulary=600))
    assert llm.engine.stop_tokens == {5, 6}
    assert (llm.defaults.temperature, llm.defaults.top_p, llm.defaults.top_k) == (0.6, 0.9, 40)
    assert llm.params(temperature=0).top_k == 40
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": "x"}')
    with pytest.raises(ArtifactError, match="eos_token_id"):
        LLM(tmp_path, model=FakeModel())
    (tmp_path / "generation_config.json").write_text('{"top_p": 7}')
    with pytest.raises(ArtifactError, match="top_p"):
        LLM(tmp_path, model=FakeModel())


def test_the_tokenizers_own_end_without_a_generation_config(llm: LLM) -> None:
    assert llm.engine.stop_tokens == {1}


def test_bad_requests_say_what_to_do(llm: LLM) -> None:
    with pytest.raises(InputError, match="empty"):
        llm.generate("")
    with pytest.raises(InputError, match="empty"):
        llm.generate([])
    with pytest.raises(InputError, match=r"byte 2 is 0xff.*iconv"):
        llm.generate(b"ab\xff")
    with pytest.raises(InputError, match="surrogate"):
        llm.generate("ab\ud800")
    with pytest.raises(InputError, match="expected text or token ids"):
        llm.generate(3)  # type: ignore[call-overload]
    with pytest.raises(InputError, match="context holds 256"):
        llm.generate(["fine", "fox " * 400])
    with pytest.raises(InputError, match=r"no sampling option 'temprature'.*temperature"):
        llm.generate("fox", temprature=0)
    with pytest.raises(InputError, match="one of the two"):
        next(llm.stream())
    with pytest.raises(UnsupportedError, match="encoder"):
        llm.embed(["fox"])
    assert not llm.engine.has_work


def test_token_ids_need_no_tokenizer(tmp_path: Path) -> None:
    llm = LLM(tmp_path, model=FakeModel())
    assert len(llm.generate([1, 2], max_tokens=3, temperature=0).token_ids) == 3
    with pytest.raises(ArtifactError, match=r"tokenizer\.json"):
        llm.generate("text")
    with pytest.raises(ArtifactError, match=r"tokenizer\.json"):
        llm.generate([1], stop="x")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ArtifactError, match="not a tokenizer"):
        LLM(tmp_path, model=FakeModel())
