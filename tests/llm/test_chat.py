"""Chat templates: where they are found, what they see, and what is said when they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graphc.errors import ArtifactError, InputError, UnsupportedError
from graphc.llm.chat import ChatTemplate

CHATML = (
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HELLO = [{"role": "user", "content": "Hello"}]


def template(folder: Path, text: Any = None, **config: Any) -> ChatTemplate:
    if text is not None:
        config["chat_template"] = text
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return ChatTemplate.open(folder)


def test_a_conversation(tmp_path: Path) -> None:
    chat = template(tmp_path, CHATML)
    assert chat.render(HELLO) == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert chat.render(HELLO, add_generation_prompt=False).endswith("Hello<|im_end|>\n")
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hel"}, {"text": "lo"}]}]
    assert chat.render(parts) == chat.render(HELLO)


def test_the_same_as_transformers(tmp_path: Path) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    text = (
        "{{ bos_token }}{% for m in messages %}{% if loop.index > 3 %}{% break %}{% endif %}\n"
        "  {% set role = m['role'] | upper %}[{{ role }}] {{ m['content'] | trim }}\n"
        "{% endfor %}{{ tools | tojson(indent=2) }}{% if add_generation_prompt %}>{% endif %}"
    )
    messages = [{"role": r, "content": f" <{r}> & ä "} for r in ("system", "user", "a", "b")]
    tools = [{"name": "f", "text": "<ä>"}]
    (expected,), _ = render_jinja_template(
        [messages], tools=tools, chat_template=text, add_generation_prompt=True, bos_token="<s>"
    )
    assert template(tmp_path, text, bos_token="<s>").render(messages, tools=tools) == expected


def test_special_tokens_and_the_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ eos_token }}{{ x }}")
    chat = template(tmp_path, "unused", bos_token={"content": "<s>"}, eos_token="</s>")
    assert chat.render(HELLO, x=1) == "<s></s>1"


def test_named_templates(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    chat = template(tmp_path, named)
    assert chat.render(HELLO) + chat.render(HELLO, template="tool_use") == "ab"
    with pytest.raises(InputError, match=r"no chat template 'rag': there is 'default', 'tool_use'"):
        chat.render(HELLO, template="rag")


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "empty"),
        (["Hello"], "expected an object"),
        ([{"content": "x"}], "expected an object"),
        ([{"role": "user", "content": 3}], "expected text"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "not text"),
        ([{"role": "x", "content": "x"}], "roles must alternate"),
    ],
)
def test_messages_that_cannot_be_read(tmp_path: Path, messages: Any, message: str) -> None:
    chat = template(
        tmp_path,
        "{% if messages[0].role == 'x' %}{{ raise_exception('roles must alternate') }}{% endif %}",
    )
    with pytest.raises(InputError, match=message):
        chat.render(messages)


def test_a_model_without_a_template_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"plain prompt.*chat_template\.jinja"):
        template(tmp_path).render(HELLO)


@pytest.mark.parametrize("text", ["{{", "{% for %}", "{{ x | nofilter }}"])
def test_a_damaged_template(tmp_path: Path, text: str) -> None:
    with pytest.raises(ArtifactError, match="damaged"):
        template(tmp_path, text).render(HELLO)


def test_a_template_is_not_trusted(tmp_path: Path) -> None:
    for text in (
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ range(10 ** 9) | list }}",
    ):
        with pytest.raises(InputError):
            template(tmp_path, text).render(HELLO)


def test_files_that_are_not_what_they_should_be(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("[1")
    with pytest.raises(ArtifactError, match="not JSON"):
        ChatTemplate.open(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ArtifactError, match="expected an object"):
        ChatTemplate.open(tmp_path)
    with pytest.raises(ArtifactError, match="neither"):
        template(tmp_path, [1])
