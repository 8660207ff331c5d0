"""What callers may ask: each bound from both sides, who is named in a refusal, and what fills what was left unset."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from pagewire.core.errors import ContextTooLong, InvalidRequest, UnknownModel, UnsupportedField
from pagewire.core.sampling import MAX_STOP_STRING_CHARS, TokenSequence
from pagewire.core.sequence_spec import MAX_PRIORITY
from pagewire.router.ask import Ask
from pagewire.router.tenants import Tenant
from pagewire.router.validation import (
    ROLES,
    Limits,
    check,
    check_token_ids,
    checked_request_id,
    finish,
    in_words,
    is_request_id,
    truncated,
)
from pagewire.text.text_stream import TextRules

LIMITS = Limits(model="m", max_model_len=100, vocab_size=50, max_timeout_s=60.0, open_answer_tokens=20)
FORMS = {"text", "token_ids", "messages"}
USER = {"role": "user", "content": "a"}


def asked(**fields: Any) -> Ask:
    """Return an ask of a short text, unless the fields have a prompt."""
    return Ask(**{"request_id": "r", **({} if FORMS & fields.keys() else {"text": "x"}), **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"request_id": "r" * 128},
        {"request_id": "a b~!"},
        {"model": "m"},
        {"cache_salt": "s"},
        {"cache_salt": "s" * 1024},
        {"priority": MAX_PRIORITY},
        {"priority": -MAX_PRIORITY},
        {"stream_interval": 1},
        {"stream_interval": 1024},
        {"timeout_s": 0.5},
        {"truncate_prompt_tokens": -1},
        {"truncate_prompt_tokens": 1},
        {"truncate_prompt_tokens": 100},
        {"truncation_side": "right"},
        {"bad_words": ("w", "w" * MAX_STOP_STRING_CHARS, (0, 49))},
        {"bad_words": ("w",) * 512},
        {"max_tokens": 99},
        {"min_tokens": 100},
        {"token_ids": (0, 49)},
        {"token_ids": (1,) * 99},
        {"token_ids": (1,) * 500, "truncate_prompt_tokens": 5},
        {"messages": tuple({"role": role} for role in ROLES)},
        {"messages": (USER,) * 99},
    ],
    ids=str,
)
def test_what_is_within_its_bounds_is_taken(fields: dict[str, Any]) -> None:
    check(asked(**fields), LIMITS)


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"request_id": ""}, "request_id", "got 0"),
        ({"request_id": "r" * 129}, "request_id", "1 to 128 printable ASCII characters, got 129"),
        ({"request_id": "a\nb"}, "request_id", "printable"),
        ({"request_id": "ä"}, "request_id", "ASCII"),
        ({"model": "n"}, "model", "'n' is not served here, 'm' is"),
        ({"cache_salt": ""}, "cache_salt", "1 to 1024 characters, got 0"),
        ({"cache_salt": "s" * 1025}, "cache_salt", "got 1025"),
        ({"priority": MAX_PRIORITY + 1}, "priority", f"is {MAX_PRIORITY + 1}"),
        ({"priority": -MAX_PRIORITY - 1}, "priority", f"must be between -{MAX_PRIORITY} and {MAX_PRIORITY}"),
        ({"stream_interval": 0}, "stream_interval", "between 1 and 1024 tokens, is 0"),
        ({"stream_interval": 1025}, "stream_interval", "is 1025"),
        ({"timeout_s": 0.0}, "timeout", "positive"),
        ({"timeout_s": -0.5}, "timeout", "positive, is -0.5 s"),
        ({"timeout_s": math.inf}, "timeout", "is inf s"),
        ({"timeout_s": math.nan}, "timeout", "is nan s"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "-1 or between 1 and 100, is 0"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "is -2"),
        ({"truncate_prompt_tokens": 101}, "truncate_prompt_tokens", "is 101"),
        ({"truncation_side": "top"}, "truncation_side", "left or right, not 'top'"),
        ({"bad_words": ("",)}, "bad_words", f"1 to {MAX_STOP_STRING_CHARS} characters, got 0"),
        ({"bad_words": ("a", "w" * (MAX_STOP_STRING_CHARS + 1))}, "bad_words", f"got {MAX_STOP_STRING_CHARS + 1}"),
        ({"bad_words": ((50,),)}, "bad_words", "got 50"),
        ({"bad_words": ("w",) * 513}, "bad_words", "at most 512, got 513"),
        ({"temperature": math.nan}, "temperature", "nan"),
        ({"min_tokens": 101}, "min_tokens", "between 0 and 100"),
        ({"min_tokens": 8, "max_tokens": 7}, "min_tokens", "between 0 and 7"),
        ({"max_tokens": 0}, "max_tokens", "is 0"),
        ({"max_tokens": 100}, "max_tokens", "max_tokens 100 leaves no room for a prompt"),
        ({"text": None}, "prompt", "prompt is missing: a text, token ids or messages"),
        ({"text": "x", "token_ids": (1,)}, "prompt", "got 2"),
        ({"text": "x", "token_ids": (1,), "messages": (USER,)}, "prompt", "got 3"),
        ({"text": ""}, "prompt", "the prompt is empty"),
        ({"token_ids": ()}, "prompt", "the prompt is empty"),
        ({"messages": ()}, "messages", "the prompt is empty"),
        ({"token_ids": (1,) * 100}, "prompt", "too long with 100,"),
        ({"token_ids": (1, 50)}, "prompt", "token ids are 0 to 49, prompt holds 50"),
        ({"messages": (USER,) * 100}, "messages", "too long with at least 100,"),
        ({"messages": (USER, {"role": "boss"})}, "messages", "messages.1.role is 'boss', known are system, developer"),
    ],
    ids=str,
)
def test_what_is_beyond_its_bounds_is_refused_by_its_name(fields: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check(asked(**fields), LIMITS)
    assert refused.value.field == field
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"max_tokens": 100}, ContextTooLong),
        ({"token_ids": (1,) * 100}, ContextTooLong),
        ({"messages": (USER,) * 100}, ContextTooLong),
        ({"model": "n"}, UnknownModel),
        ({"max_tokens": 0}, InvalidRequest),
    ],
)
def test_clients_are_told_by_its_kind_what_is_too_long_and_what_is_not_served(
    fields: dict[str, Any], kind: type[InvalidRequest]
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check(asked(**fields), LIMITS)
    assert type(refused.value) is kind
    assert (kind is ContextTooLong) == ("maximum context length is 100 tokens" in str(refused.value))


def test_a_refusal_names_a_field_as_the_caller_did() -> None:
    called = (("max_tokens", "max_completion_tokens"), ("stop_token_ids", "stops"))
    with pytest.raises(ContextTooLong, match="max_completion_tokens 100 leaves no room") as refused:
        check(asked(max_tokens=100, called=called), LIMITS)
    assert refused.value.field == "max_completion_tokens"
    with pytest.raises(ContextTooLong, match="max_completion_tokens is 99") as refused:
        finish(asked(max_tokens=99, called=called), (1, 2), LIMITS, seed=0)
    assert refused.value.field == "max_completion_tokens"
    with pytest.raises(InvalidRequest, match="truncation_side is left or right") as other:
        check(asked(truncation_side="top", called=called), LIMITS)
    assert other.value.field == "truncation_side"


def test_what_may_name_a_request_is_returned_as_it_is() -> None:
    assert checked_request_id("a b") == "a b"
    assert (is_request_id("a b"), is_request_id("")) == (True, False)


@pytest.mark.parametrize(
    ("tokens", "wrong"), [((), None), ((0, 49), None), ((49, -1), -1), ((0, 50), 50), ((-3, 99), -3), ((1, 2, 70), 70)]
)
def test_tokens_are_those_of_the_model_and_the_one_that_is_none_is_named(
    tokens: tuple[int, ...], wrong: int | None
) -> None:
    if wrong is None:
        check_token_ids("tokens", tokens, LIMITS)
        return
    with pytest.raises(InvalidRequest, match=f"token ids are 0 to 49, tokens holds {wrong}$") as refused:
        check_token_ids("tokens", tokens, LIMITS)
    assert refused.value.field == "tokens"


# ------------------------------------------------------------------------------------------------ once tokens are known


def test_defaults_fill_what_fits() -> None:
    prompt = tuple(range(40))
    chat = finish(Ask(request_id="r", messages=({"role": "user"},)), prompt, LIMITS, seed=5)
    assert (chat.sampling.max_tokens, chat.sampling.seed, chat.timeout_s) == (60, 5, 60.0)
    assert (chat.cache_salt, chat.sampling.n, chat.sampling.stop) == ("", 1, ())
    text = finish(asked(seed=7, timeout_s=1.0), prompt, LIMITS, seed=5)
    assert (text.sampling.max_tokens, text.sampling.seed, text.timeout_s) == (16, 7, 1.0)
    assert finish(asked(), tuple(range(90)), LIMITS, seed=5).sampling.max_tokens == 10


def test_a_request_is_what_was_asked_within_what_the_cluster_grants() -> None:
    tenant, rules = Tenant(name="acme"), TextRules(with_special=True)
    ask = asked(
        tenant=tenant, priority=3, text_rules=rules, explain=True, cache_salt="s", timeout_s=61.0, seed=0,
        max_tokens=98, temperature=0.5, stop=("s",), bad_words=("w",), ignore_eos=True, n=2,
    )  # fmt: skip
    request = finish(ask, (1, 2), LIMITS, seed=9, bad_words=((7, 8),), echo="e")
    assert (request.request_id, request.tenant, request.prompt, request.echo) == ("r", tenant, (1, 2), "e")
    assert (request.priority, request.text_rules, request.explain, request.cache_salt) == (3, rules, True, "s")
    assert request.timeout_s == 60.0
    said = request.sampling
    assert (said.temperature, said.stop, said.ignore_eos, said.n, said.seed) == (0.5, ("s",), True, 2, 0)
    assert (said.max_tokens, said.bad_words) == (98, (TokenSequence(tokens=(7, 8)),))


@pytest.mark.parametrize(
    ("fields", "num_tokens", "field", "message"),
    [
        ({}, 0, "prompt", "the prompt has no tokens, at least 1 is needed"),
        ({"messages": (USER,)}, 0, "messages", "the prompt has no tokens"),
        ({}, 100, "prompt", "too long with 100,"),
        ({"messages": (USER,)}, 101, "messages", "too long with 101,"),
        ({"max_tokens": 61}, 40, "max_tokens", "the prompt has 40, which leaves 60; max_tokens is 61"),
    ],
)
def test_a_prompt_and_its_answer_fit_the_models_context(
    fields: dict[str, Any], num_tokens: int, field: str, message: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        finish(asked(**fields), (1,) * num_tokens, LIMITS, seed=0)
    assert refused.value.field == field
    assert message in str(refused.value)
    assert isinstance(refused.value, ContextTooLong) == (num_tokens > 0)
    assert finish(asked(), (1,) * 99, LIMITS, seed=0).sampling.max_tokens == 1
    assert finish(asked(max_tokens=60), (1,) * 40, LIMITS, seed=0).sampling.max_tokens == 60


def test_what_bad_words_become_is_within_the_vocabulary_too() -> None:
    with pytest.raises(InvalidRequest, match="between 0 and 49, got 50") as refused:
        finish(asked(bad_words=("w",)), (1,), LIMITS, seed=0, bad_words=((50,),))
    assert refused.value.field == "bad_words"


def test_a_prompt_has_no_more_log_probabilities_than_an_answer_holds() -> None:
    limits = replace(LIMITS, max_model_len=1 << 20)
    prompt = (1,) * (1 << 16)

    def scores(alternatives: int, n: int | None) -> int | None:
        ask = asked(prompt_logprobs=alternatives, n=n)
        return finish(ask, prompt, limits, seed=1).sampling.prompt_logprobs

    assert (scores(15, None), scores(15, 1), scores(7, 2)) == (15, 15, 7)
    for alternatives, n in ((16, None), (16, 1), (8, 2)):
        with pytest.raises(InvalidRequest, match=f"with {alternatives} alternatives each") as refused:
            scores(alternatives, n)
        assert refused.value.field == "prompt_logprobs"


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, range(120)),
        ({"truncate_prompt_tokens": 3}, range(117, 120)),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, range(3)),
        ({"truncate_prompt_tokens": 120}, range(120)),
        ({"truncate_prompt_tokens": 200, "truncation_side": "right"}, range(120)),
        ({"truncate_prompt_tokens": -1}, range(36, 120)),  # a completion has 16 tokens
        ({"truncate_prompt_tokens": -1, "max_tokens": 10}, range(30, 120)),
        ({"truncate_prompt_tokens": -1, "max_tokens": 1, "truncation_side": "right"}, range(99)),
    ],
)
def test_of_a_prompt_is_kept_what_the_caller_wants_kept(fields: dict[str, Any], kept: range) -> None:
    assert truncated(asked(**fields), tuple(range(120)), LIMITS) == tuple(kept)


@pytest.mark.parametrize(
    ("chats", "most", "room"),
    [
        (True, 100, 20),
        (True, 81, 20),
        (True, 79, 19),
        (True, 3, 1),
        (False, 64, 16),
        (False, 60, 15),
        (False, 3, 1),
    ],
)
def test_a_prompt_that_is_cut_leaves_an_open_answer_its_usual_length_or_a_quarter(
    chats: bool, most: int, room: int
) -> None:
    form: dict[str, Any] = {"messages": (USER,)} if chats else {}
    limits = replace(LIMITS, max_model_len=most)
    assert len(truncated(asked(**form, truncate_prompt_tokens=-1), tuple(range(120)), limits)) == most - room


def test_an_open_answer_is_usually_taken_for_512_tokens() -> None:
    limits = Limits(model="m", max_model_len=4096, vocab_size=50, max_timeout_s=60.0)
    cut = truncated(asked(messages=(USER,), truncate_prompt_tokens=-1), (1,) * 5000, limits)
    assert len(cut) == 4096 - 512


def test_a_refusal_is_in_the_callers_words() -> None:
    called = (("a.b", "x.y"), ("a", "x.y"), ("c", "z"))
    assert in_words(InvalidRequest("a.b.d is missing, c too", field="a"), called).message == "x.y.d is missing, c too"
    assert in_words(InvalidRequest("a is missing", field="a"), called).message == "x.y is missing"
    told = in_words(UnsupportedField("c is none", field="c"), called)
    assert (type(told), told.message, told.field) == (UnsupportedField, "z is none", "z")
    assert in_words(InvalidRequest("a", field="a"), called).field == "x"
    other = InvalidRequest("a and d", field="d")
    assert in_words(other, called) is other


@pytest.mark.parametrize(("num_adapters", "more"), [(15, ""), (16, " and 1 more"), (18, " and 3 more")])
def test_of_a_model_that_is_not_served_some_that_are_are_named(num_adapters: int, more: str) -> None:
    names = [f"a{number}" for number in range(num_adapters)]
    with pytest.raises(UnknownModel) as refused:
        check(asked(model="b"), replace(LIMITS, adapters=tuple(names)))
    told = ", ".join(map(repr, ["m", *names][:16]))
    assert refused.value.message == f"model 'b' is not served here, {told}{more} are"


@pytest.mark.parametrize(("model", "adapter"), [("", ""), ("m", ""), ("a", "a")])
def test_an_adapter_is_named_as_the_model(model: str, adapter: str) -> None:
    limits = replace(LIMITS, adapters=("a", "b"))
    ask = asked(model=model)
    check(ask, limits)
    assert finish(ask, (1,), limits, seed=0).adapter == adapter


@pytest.mark.parametrize(("max_tokens", "room"), [(5, 5), (97, 97), (98, 97), (100, 97), (1000, 97)])
def test_an_answer_that_fits_what_there_is_has_as_much(max_tokens: int, room: int) -> None:
    ask = asked(max_tokens=max_tokens, fits_max_tokens=True)
    check(ask, LIMITS)
    assert finish(ask, (1, 2, 3), LIMITS, seed=0).sampling.max_tokens == room
    strict = asked(max_tokens=max_tokens)
    if max_tokens > room:
        with pytest.raises(ContextTooLong):
            finish(strict, (1, 2, 3), LIMITS, seed=0)
    if max_tokens >= LIMITS.max_model_len:
        with pytest.raises(ContextTooLong):
            check(strict, LIMITS)
