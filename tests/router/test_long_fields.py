"""Fields of many values, read by hand: what is taken comes out as it went in, the first wrong value is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pagewire.core.errors import InvalidRequest, UnsupportedField
from pagewire.core.sampling import MAX_LOGIT_BIAS, TokenBias
from pagewire.router import long_fields as of

USER = {"role": "user", "content": "a"}
FIELDS = {"prompts": "prompt", "template_options": "chat_template_kwargs"}  # that are called otherwise than who reads


def ids(value: object) -> tuple[int, ...]:
    return of.token_ids("ids", value)


def test_what_is_right_comes_out() -> None:
    assert (of.prompts(None), of.prompts("a"), of.prompts([])) == ((None,), ("a",), ((),))
    assert (of.prompts([1, 2]), of.prompts(["a", "b"]), of.prompts([[1], []])) == (((1, 2),), ("a", "b"), ((1,), ()))
    assert (of.documents(None), of.documents([{"text": "a"}])) == ((), ({"text": "a"},))
    assert (of.template_options(None), of.template_options({"a": 1})) == ({}, {"a": 1})
    assert (of.stop(None), of.stop("a"), of.stop(["a", "b"])) == ((), ("a",), ("a", "b"))
    assert (of.token_ids("f", None), of.token_ids("f", [3, 4])) == ((), (3, 4))
    assert (of.allowed_token_ids(None), of.allowed_token_ids([3, 4])) == ((), (3, 4))
    assert (of.bad_words(None), of.bad_words(["a", [3, 4]])) == ((), ("a", (3, 4)))
    assert (of.logit_bias(None), of.logit_bias({"7": -1.5})) == ((), (TokenBias(token=7, bias=-1.5),))
    assert len(of.prompts(["a"] * of.MAX_PROMPTS)) == of.MAX_PROMPTS
    assert len(of.logit_bias({str(token): 1 for token in range(MAX_LOGIT_BIAS)})) == MAX_LOGIT_BIAS
    assert of.logit_bias({"0123456789": 1})[0].token == 123456789


@pytest.mark.parametrize(
    ("read", "value", "message"),
    [
        (of.prompts, 5, "prompt is a number, must be a text, a list of token ids, or a list of one of these"),
        (of.prompts, ["a"] * (of.MAX_PROMPTS + 1), "prompt holds 129 prompts"),
        (of.prompts, [None, "a"], "prompt.0 is null, must be a text, a token id or a list of token ids"),
        (of.prompts, ["a", 1], "prompt.1 is a number, must be a text, as the others are"),
        (of.prompts, [[1], "a"], "prompt.1 is a string, must be a list of token ids, as the others are"),
        (of.prompts, [[1], [True]], "prompt.1.0 is a boolean, must be an integer"),
        (of.documents, "a", "documents is a string, must be a list of objects"),
        (of.documents, [{}, []], "documents.1 is a list, must be an object"),
        (of.template_options, [], "chat_template_kwargs is a list, must be an object"),
        (of.stop, {}, "stop is an object, must be a string or a list of strings"),
        (of.stop, ["a", 1], "stop.1 is a number, must be a string"),
        (ids, "a", "ids is a string, must be a list of token ids"),
        (ids, [1, 1.5], "ids.1 is a number, must be an integer"),
        (of.allowed_token_ids, [], "allowed_token_ids is empty, which allows no token"),
        (of.logit_bias, [], "logit_bias is a list, must be an object from token ids to numbers"),
        (of.logit_bias, {str(token): 1 for token in range(MAX_LOGIT_BIAS + 1)}, f"at most {MAX_LOGIT_BIAS}, got"),
        (of.logit_bias, {"01234567890": 1}, "'01234567890' is not a token id"),
        (of.logit_bias, {"\u0663": 1}, "is not a token id"),
        (of.logit_bias, {"1a": 1}, "'1a' is not a token id"),
        (of.logit_bias, {"1": "a"}, "logit_bias.1 is a string, must be a number"),
        (of.logit_bias, {"1": True}, "logit_bias.1 is a boolean, must be a number"),
        (of.bad_words, "a", "bad_words is a string, must be a list of texts or of lists of token ids"),
        (of.bad_words, ["a", 1], "bad_words.1 is a number, must be a text or a list of token ids"),
        (of.messages, None, "messages is missing"),
        (of.messages, {}, "messages is an object, must be a list"),
        (of.messages, [USER, "a"], "messages.1 is a string, must be an object"),
        (of.messages, [{"content": "a"}], "messages.0.role is missing"),
        (of.messages, [{"role": "user"}], "messages.0.content is missing"),
        (of.messages, [{**USER, "name": 5}], "messages.0.name is a number, must be a string"),
        (of.messages, [{**USER, "tool_calls": [{}]}], "only an assistant calls tools"),
        (of.messages, [{"role": "user", "tool_calls": [{}]}], "only an assistant calls tools"),
        (of.messages, [{"role": "user", "refusal": "no"}], "messages.0.content is missing"),
        (of.messages, [{**USER, "content": 5}], "messages.0.content is a number, must be a string or a list of parts"),
        (of.messages, [{**USER, "content": [5]}], "messages.0.content.0 is a number, must be an object"),
        (of.messages, [{**USER, "content": [{"text": "a"}]}], "messages.0.content.0.type is null, must be a string"),
        (of.messages, [{**USER, "content": [{"type": "text", "text": 5}]}], "messages.0.content.0.text is a number"),
        (
            of.messages,
            [{**USER, "content": [{"type": "refusal", "refusal": []}]}],
            "messages.0.content.0.refusal is a list, must be a string",
        ),
        (of.messages, [{"role": "assistant", "refusal": 0}], "messages.0.refusal is a number, must be a string"),
        (of.messages, [{"role": "assistant", "content": 0}], "messages.0.content is a number"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(read: Callable[[object], object], value: object, message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(value)
    assert message in str(refused.value)
    assert refused.value.field == FIELDS.get(read.__name__, read.__name__)


@pytest.mark.parametrize(
    "extra",
    [
        {"audio": {"id": "a"}},
        {"content": [{"type": "image_url"}]},
        {"content": [{"type": "refusal", "text": "a"}]},
        {"content": [{"type": "text"}]},
    ],
)
def test_what_no_model_reads_is_refused(extra: dict[str, object]) -> None:
    with pytest.raises(UnsupportedField, match="not supported"):
        of.messages([{**USER, **extra}])
    assert of.messages([{**USER, "audio": None, "refusal": ""}]) == (USER,)


def test_messages_keep_what_templates_read_and_parts_become_one_text() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    read = of.messages(
        [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "n"},
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "r"},
            {"role": "tool", "content": "1", "tool_call_id": "c", "name": None},
            {"role": "assistant", "content": "a", "tool_calls": [call], "reasoning": "by its other name"},
        ]
    )
    assert read[0] == {"role": "user", "content": "a\nb", "name": "n"}
    assert (read[1]["content"], read[1]["reasoning_content"]) == ("", "r")
    assert read[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert read[2] == {"role": "tool", "content": "1", "tool_call_id": "c"}
    assert (read[3]["content"], len(read[3]["tool_calls"])) == ("a", 1)
    assert read[3]["reasoning_content"] == "by its other name"


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({}, ""),
        ({"content": None}, ""),
        ({"content": None, "refusal": ""}, ""),
        ({"content": None, "refusal": "no"}, "no"),
        ({"refusal": "no"}, "no"),
        ({"content": "", "refusal": "no"}, "no"),
        ({"content": "a", "refusal": "no"}, "a\nno"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "no"}]}, "a\nno"),
        ({"content": [{"type": "refusal", "refusal": "no", "text": "a"}]}, "no"),
        ({"content": []}, ""),
    ],
)
def test_an_assistant_may_have_said_nothing_or_refused(said: dict[str, object], text: str) -> None:
    assert of.messages([{"role": "assistant", **said}]) == ({"role": "assistant", "content": text},)


def test_by_older_words_an_answer_belongs_to_the_call_before_it() -> None:
    call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    read = of.messages([call, {"role": "function", "name": "f", "content": "1"}] * 2)
    ids = [read[0]["tool_calls"][0]["id"], read[2]["tool_calls"][0]["id"]]
    assert ids[0] != ids[1]
    assert all(len(each) == 9 and each.isalnum() for each in ids), "some templates take no others"
    assert [read[1]["tool_call_id"], read[3]["tool_call_id"]] == ids


@pytest.mark.parametrize(
    ("begins", "goes_on", "expected"),
    [(None, False, True), (None, True, False), (True, False, True), (False, True, False)],
)
def test_a_prompt_ends_with_the_assistants_turn_begun_or_left_open(
    begins: bool | None, goes_on: bool, expected: bool
) -> None:
    told = of.chat_options(add_generation_prompt=begins, continue_final_message=goes_on, documents=(), options={"a": 1})
    assert (told.add_generation_prompt, told.continue_final_message) == (expected, goes_on)
    assert told.options == (("a", 1),)
    with pytest.raises(InvalidRequest, match="does not go with"):
        of.chat_options(add_generation_prompt=True, continue_final_message=True, documents=(), options={})
