"""A conversation as the text that the model was trained on: its own chat template, sandboxed."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from graphc.errors import ArtifactError, InputError, ToolError, UnsupportedError
from graphc.llm.json_files import read_object, read_text

TEMPLATE: Final = "chat_template.jinja"
CONFIG: Final = "tokenizer_config.json"
_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "pad_token")
_DEFAULT: Final = "default"

Message = Mapping[str, Any]


class ChatTemplate:
    """Templates by name (most models have one), and the special tokens that they write."""

    def __init__(self, templates: Mapping[str, str], tokens: Mapping[str, str]) -> None:
        self._templates = dict(templates)
        self._tokens = dict(tokens)
        self._compiled: dict[str, Any] = {}

    @classmethod
    def open(cls, directory: Path) -> ChatTemplate:
        """From the artifact's chat_template.jinja or tokenizer_config.json."""
        config = read_object(directory / CONFIG)
        tokens = {name: _spelling(config.get(name)) for name in _TOKENS}
        templates = _templates_of(config.get("chat_template"), directory / CONFIG)
        separate = read_text(directory / TEMPLATE)
        if separate is not None:
            templates[_DEFAULT] = separate
        return cls(templates, {name: text for name, text in tokens.items() if text is not None})

    def render(
        self,
        messages: Sequence[Message],
        *,
        template: str | None = None,
        add_generation_prompt: bool = True,
        **more: Any,
    ) -> str:
        """The text of a conversation up to where the answer begins.

        `more` is what the template knows besides: tools, documents, its own switches. Raises
        UnsupportedError when the model has no template, InputError for messages it refuses.
        """
        import jinja2

        name = template or _DEFAULT
        compiled = self._template(name)
        values = {**self._tokens, **more, "messages": [_checked(m) for m in messages]}
        if not messages:
            raise InputError("the conversation is empty: give at least one message")
        try:
            return str(compiled.render(**values, add_generation_prompt=add_generation_prompt))
        except jinja2.TemplateError as error:
            raise InputError(f"the chat template refuses these messages: {error}") from error
        except (TypeError, ValueError, KeyError, OverflowError, RecursionError) as error:
            raise InputError(
                f"the chat template {name!r} fails on these messages: {error}"
            ) from error

    def _template(self, name: str) -> Any:
        if not self._templates:
            raise UnsupportedError(
                "this model has no chat template: it was not trained to chat; use a plain prompt, "
                f"or put a {TEMPLATE} into the artifact"
            )
        if name not in self._templates:
            known = ", ".join(map(repr, sorted(self._templates)))
            raise InputError(f"no chat template {name!r}: there is {known}")
        if name not in self._compiled:
            self._compiled[name] = _compile(self._templates[name], name)
        return self._compiled[name]


def _compile(text: str, name: str) -> Any:
    try:
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise ToolError("chat templates need jinja2: pip install 'graphc[llm]'") from error
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    try:
        return environment.from_string(text)
    except jinja2.TemplateError as error:
        raise ArtifactError(f"the chat template {name!r} is damaged: {error}") from error


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """Without the HTML escapes of jinja2's own."""
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _raise_exception(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def _checked(message: Message) -> dict[str, Any]:
    """A message with a role; the parts of a multi-part content must be text."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InputError(f"a message is {message!r:.60}: expected an object with role and content")
    content = message.get("content")
    if isinstance(content, list | tuple):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        if len(texts) != len(content) or not all(isinstance(text, str) for text in texts):
            raise InputError("a message has a part that is not text: only text can be read")
        return {**message, "content": "".join(str(text) for text in texts)}
    if content is not None and not isinstance(content, str):
        raise InputError(f"a message's content is {content!r:.60}: expected text")
    return dict(message)


def _spelling(token: Any) -> str | None:
    """A special token is given as text, or as an object that describes it."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _templates_of(value: Any, place: Path) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {_DEFAULT: value}
    try:
        named = {str(item["name"]): str(item["template"]) for item in value}
    except (TypeError, KeyError) as error:
        raise ArtifactError(f"{place}: chat_template is neither a text nor a list") from error
    return named
