"""A model's chat template: messages in, prompt text out, equal to what transformers renders.

Knows Jinja, nothing of tokens. A developer's message is one of the system's where the template does not know the role:
most would leave it out without a word. Templates are data of whoever made the model, so they run in an immutable
sandbox, within a budget of time and memory, and see plain JSON values alone.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
from jinja2.parser import Parser
from jinja2.utils import Namespace

from pagewire.core.errors import InvalidRequest, UnsupportedField
from pagewire.text.reasoning.formats import format_of
from pagewire.text.template_budget import MAX_SECONDS, BoundedSandbox, Budget, bounded

# Names under which a message's reasoning comes; templates read the first, some the second.
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_END_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
NOTHING: Mapping[str, Any] = {}
# What asks a model not to reason.
_OFF: Mapping[str, object] = {"reasoning_effort": "none", "enable_thinking": False}
# What no caller may set by its name in a template.
_OURS = frozenset(("messages", "tools", "documents", "add_generation_prompt"))
_DEVELOPER = "developer"
_INSTRUCTING = ("system", _DEVELOPER)


class ChatTemplate:
    """One compiled template. `special_tokens` are its variables `bos_token`, `eos_token` and so on.

    Raises ValueError on a source that is no template, or too long a one.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = _environment()
        self._budget = environment.budget
        self.source = source
        try:
            read = jinja2.meta.find_undeclared_variables(environment.parse(source))
            self._template = environment.from_string(source)
        except Exception as error:  # whatever Jinja, or Python that compiles what Jinja makes of it, says of a bad one
            said = "it is nested too deeply" if isinstance(error, RecursionError) else error
            raise ValueError(f"a chat template cannot be compiled: {said!s:.300}") from error
        self.variables = frozenset(read - set(environment.globals))
        self._template.globals = dict(self._template.globals)  # a ChainMap, which is read slowly for each rendering
        self._special_tokens = dict(special_tokens)
        self._knows_developers = _DEVELOPER in source
        self._may_reason = bool(self.variables & _OFF.keys()) or format_of(source) is not None

    @property
    def options(self) -> frozenset[str]:
        """The variables that a caller may set: what the template reads, less what is ours to say."""
        return self.variables - _OURS - set(self._special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
        documents: Sequence[Mapping[str, Any]] = (),
        options: Mapping[str, Any] = NOTHING,
        wishes: Mapping[str, Any] = NOTHING,
    ) -> str:
        """Return the prompt, which ends within the last message if that is to be continued.

        `wishes` are options that the template need not read, as it need not one that turns off what it knows nothing
        of, reasoning. Raises InvalidRequest where it refuses the messages, or does not read another option that is set.
        """
        _refuse_unread("documents", {"documents"} - self.variables if documents else ())
        for name in sorted(set(options) - self.options):
            if not self._may_reason and name in _OFF and _is(options[name], _OFF[name]):
                continue
            # The one option that has a field of its own.
            _refuse_unread(name if name == "reasoning_effort" else "chat_template_kwargs", {name})
        options = {name: wishes[name] for name in wishes.keys() & self.options} | dict(options)
        plain = [_plain_message(message) for message in messages]
        if not self._knows_developers:
            plain = _without_developers(plain)
        if continue_final_message:
            last = plain[-1] if plain else {}
            # Reasoning goes on where nothing is said behind it, by each of its names.
            for name in ("content",) if last.get("content") else _REASONING_FIELDS:
                if last.get(name):
                    last[name] += _END_TAG
        try:
            with self._budget.spend(MAX_SECONDS):
                text = bounded(
                    self._template.generate(
                        messages=plain,
                        tools=list(tools) or None,
                        documents=list(documents) or None,
                        add_generation_prompt=add_generation_prompt,
                        **{**self._special_tokens, **options},
                    )
                )
        except Exception as error:  # a template is a program of the model's maker, run on what the caller wrote
            said = "they are nested too deeply" if isinstance(error, RecursionError) else error
            raise InvalidRequest(f"the model's chat template refuses the messages: {said}", field="messages") from error
        return _cut(text) if continue_final_message else text


def _is(value: object, wanted: object) -> bool:
    # 0 == False in Python, and not in JSON.
    return value == wanted and type(value) is type(wanted)


def _refuse_unread(field: str, names: Iterable[str]) -> None:
    if unread := sorted(names):
        raise UnsupportedField(f"the model's chat template does not read {unread[0][:50]!r}", field=field)


def _cut(text: str) -> str:
    """Return the text up to the tag; where the template trimmed the message, so is what is before it."""
    at = text.rfind(_END_TAG.strip())
    if at < 0:
        raise InvalidRequest("the model's chat template drops the final message", field="continue_final_message")
    return text[:at] if text.startswith(_END_TAG, at) else text[:at].rstrip()


def _plain_message(message: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {key: value for key, value in message.items() if value is not None}
    reasoning = next((plain[key] for key in _REASONING_FIELDS if key in plain), None)
    if reasoning is not None:
        plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
    if calls := plain.get("tool_calls"):
        plain["tool_calls"] = [_plain_call(call) for call in calls]
    return plain


def _plain_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), dict):
        return call
    return {**call, "function": {**function, "arguments": _Arguments(function["arguments"])}}


class _Arguments(dict[str, Any]):
    """A call's arguments: an object, as most templates want them; put behind or before a text they are JSON, as of the
    others DeepSeek's write them.
    """

    def __add__(self, text: str) -> str:
        return json.dumps(self, ensure_ascii=False) + text

    def __radd__(self, text: str) -> str:
        return text + json.dumps(self, ensure_ascii=False)


def _without_developers(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with the system's in the place of a developer's: those that a chat begins with are one, since
    many templates take one, and at the beginning alone.
    """
    first = list(itertools.takewhile(lambda message: message.get("role") in _INSTRUCTING, messages))
    found = [message | {"role": "system"} if message.get("role") == _DEVELOPER else message for message in messages]
    texts = [message.get("content", "") for message in first]
    has_developer = any(message["role"] == _DEVELOPER for message in first)
    if not has_developer or not all(isinstance(text, str) for text in texts):
        return found
    return [found[0] | {"content": "\n\n".join(filter(None, texts))}, *found[len(first) :]]


def _environment() -> BoundedSandbox:
    environment = BoundedSandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols, Budget]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = _TemplateDict()
    environment.globals["namespace"] = _TemplateNamespace
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(text: str) -> str:
    return datetime.now().strftime(text)


class _Generation(jinja2.ext.Extension):
    """The `{% generation %}` tag, which marks the assistant's part for training and renders its body as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> jinja2.nodes.Node:
        """Read the tag up to its end."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _TemplateDict:
    """The builtin `dict`, without the attributes of a class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """Return `dict.fromkeys`."""
        return dict.fromkeys(*args)


class _TemplateNamespace(Namespace):
    """Jinja's namespace, which refuses the names that lead into Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # Jinja's own trick, so that `namespace(self=...)` works.
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _refuse_private(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: str) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a chat template may not store {name!r} in a namespace")
