"""One table of bad input for both doors: each is refused by name and bound, and no pod hears of it."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from typing import Any

import byte_tokenizer
import grpc
import pytest
from fake_pod import FakePod
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from router_rig import RunningRouter, StartRouter

from pagewire.protos import inference_pb2 as pb
from pagewire.router.json_text import MAX_PARTS, MAX_VALUES

VOCAB = byte_tokenizer.build().get_vocab_size()

# fields of /v1/completions, the field that the refusal names, a part of its message that holds the bound
COMPLETIONS: list[tuple[dict[str, Any], str, str]] = [
    ({"model": "gpt-5"}, "model", "'fake' is"),
    ({"max_tokens": -1}, "max_tokens", "between 1 and"),
    ({"max_tokens": 0}, "max_tokens", "between 1 and"),
    ({"max_tokens": 10**12}, "max_tokens", "between 1 and"),
    ({"max_tokens": 512}, "max_tokens", "512"),
    ({"prompt": [5] * 500, "max_tokens": 13}, "max_tokens", "leaves 12"),
    ({"temperature": -0.1}, "temperature", "between 0.0 and 100.0"),
    ({"temperature": 1e300}, "temperature", "between 0.0 and 100.0"),
    ({"top_p": 0.0}, "top_p", "(0, 1]"),
    ({"top_p": 1.5}, "top_p", "(0, 1]"),
    ({"top_k": -2}, "top_k", "between 0 and"),
    ({"min_p": 2.0}, "min_p", "between 0.0 and 1.0"),
    ({"stop": [""]}, "stop", "1 to 256 characters"),
    ({"stop": ["x" * 257]}, "stop", "1 to 256 characters"),
    ({"stop": ["x"] * 17}, "stop", "at most 16"),
    ({"stop_token_ids": [1] * 129}, "stop_token_ids", "at most 128"),
    ({"prompt": ""}, "prompt", "empty"),
    ({"prompt": []}, "prompt", "empty"),
    ({"prompt": [VOCAB]}, "prompt", f"0 to {VOCAB - 1}"),
    ({"prompt": [1] * 512}, "prompt", "length is 512"),
    ({"prompt": "a b " * 400}, "prompt", "length is 512"),
    ({"prompt": "a" * 100_000}, "prompt", "at least"),
    ({"cache_salt": "x" * 1025}, "cache_salt", "1 to 1024"),
    ({"typical_p": 0.0}, "typical_p", "(0, 1]"),
    ({"repetition_penalty": 0.0}, "repetition_penalty", "between 0.01 and 100.0"),
    ({"presence_penalty": 2.5}, "presence_penalty", "between -2.0 and 2.0"),
    ({"frequency_penalty": -2.5}, "frequency_penalty", "between -2.0 and 2.0"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", "between 0 and 8"),
    ({"min_tokens": -1}, "min_tokens", "between 0 and"),
    ({"allowed_token_ids": [VOCAB]}, "allowed_token_ids", f"between 0 and {VOCAB - 1}"),
    ({"logprobs": 21}, "logprobs", "between 0 and 20"),
    ({"logprobs": -1}, "logprobs", "between 0 and 20"),
    ({"bad_words": [""]}, "bad_words", "1 to 256 characters"),
    ({"bad_words": ["x" * 257]}, "bad_words", "1 to 256 characters"),
    ({"bad_words": ["xqz" * 80]}, "bad_words", "1 to 64 tokens"),
    ({"bad_words": ["x"] * 513}, "bad_words", "at most 512"),
    ({"priority": 101}, "priority", "between -100 and 100"),
    ({"priority": -101}, "priority", "between -100 and 100"),
]

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
TOOL = {"type": "function", "function": {"name": "f"}}
HTTP_ONLY: list[tuple[str, dict[str, Any], str, str]] = [
    ("completions", {"prompt": None}, "prompt", "prompt is missing"),
    ("completions", {"prompt": "a", "allowed_token_ids": []}, "allowed_token_ids", "is empty"),
    ("completions", {"messages": []}, "messages", "exactly one"),
    ("completions", {"prompt": ["a"] * 129}, "prompt", "at most 128"),
    ("completions", {"prompt": ["a"] * 100, "n": 11}, "prompt", "more than 1024"),
    ("completions", {"prompt": ["a", ""]}, "prompt", "empty"),
    ("completions", {"prompt": ["a", 5]}, "prompt", "prompt.1 is a number"),
    ("completions", {"prompt": [[5], "a"]}, "prompt", "prompt.1 is a string"),
    ("completions", {"prompt": [[5], []]}, "prompt", "empty"),
    ("completions", {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "-1 or between 1 and 512"),
    ("completions", {"truncate_prompt_tokens": 513}, "truncate_prompt_tokens", "-1 or between 1 and 512"),
    ("completions", {"truncation_side": "top"}, "truncation_side", "left"),
    ("completions", {"skip_special_tokens": "no"}, "skip_special_tokens", "boolean"),
    ("completions", {"tools": [{}]}, "tools", "not supported"),
    ("completions", {"continue_final_message": True}, "continue_final_message", "not supported"),
    ("completions", {"prompt": [-1]}, "prompt", f"0 to {VOCAB - 1}"),
    ("completions", {"prompt": 5}, "prompt", ""),
    ("completions", {"prompt": "\ud800"}, "prompt", "Unicode"),
    ("completions", {"cache_salt": ""}, "cache_salt", "1 to 1024"),
    ("completions", {"priority": "high"}, "priority", "integer"),
    ("completions", {"max_tokens": "8"}, "max_tokens", "integer"),
    ("completions", {"max_tokens": 1.5}, "max_tokens", "integer"),
    ("completions", {"temperature": True}, "temperature", "number"),
    ("completions", {"seed": 2**63}, "seed", "between"),
    ("completions", {"stream_options": {"include_usage": True}}, "stream_options", "stream"),
    ("completions", {"n": 129}, "n", "between 1 and 128"),
    ("completions", {"n": 0}, "n", "between 1 and 128"),
    ("completions", {"use_beam_search": True, "n": 4, "stream": True}, "stream", "not supported with use_beam_search"),
    ("completions", {"use_beam_search": True, "stream": False, "n": 4, "beam_width": 3}, "beam_width", "between 4 and"),
    ("completions", {"use_beam_search": True, "stream": False, "stop": ["a"]}, "stop", "does not go with"),
    ("completions", {"use_beam_search": True, "stream": False, "top_p": 0.9}, "top_p", "does not go with"),
    ("completions", {"use_beam_search": 1}, "use_beam_search", "boolean"),
    ("completions", {"length_penalty": 2}, "length_penalty", "needs use_beam_search"),
    ("completions", {"early_stopping": "never"}, "early_stopping", "needs use_beam_search"),
    ("completions", {"early_stopping": "maybe"}, "early_stopping", "true, false or"),
    ("completions", {"beam_width": 4}, "beam_width", "needs use_beam_search"),
    ("completions", {"n": 2, "best_of": 1}, "best_of", "less than n"),
    ("completions", {"best_of": 2}, "best_of", "set it to n"),
    ("completions", {"use_beam_search": True, "stream": False, "guided_grammar": "start: X"},
     "guided_grammar", "guided_grammar does not go with use_beam_search"),
    ("completions", {"use_beam_search": True, "stream": False, "structured_outputs": {"regex": "a"}},
     "structured_outputs", "structured_outputs does not go with use_beam_search"),
    ("completions", {"suffix": "x"}, "suffix", "not supported"),
    ("completions", {"max_completion_tokens": 3}, "max_completion_tokens", "not supported"),
    ("completions", {"parallel_tool_calls": False}, "parallel_tool_calls", "or set it to true"),
    ("completions", {"service_tier": "flex"}, "service_tier", 'or set it to "auto"'),
    ("completions", {"prompt_cache_retention": "24h"}, "prompt_cache_retention", 'or set it to "in_memory"'),
    ("completions", {"prompt": [5] * 400, "echo": True, "logprobs": 20, "n": 128}, "logprobs", "at most 1048576"),
    ("completions", {"prompt_logprobs": 21, "stream": False}, "prompt_logprobs", "between 0 and 20"),
    ("completions", {"logprobs": True}, "logprobs", "a number"),
    ("completions", {"logprobs": 1.5}, "logprobs", "integer"),
    ("completions", {"top_logprobs": 2}, "top_logprobs", "not supported"),
    ("completions", {"logit_bias": {"1": 101}}, "logit_bias", "between -100.0 and 100.0"),
    ("completions", {"logit_bias": {str(VOCAB): 1}}, "logit_bias", f"between 0 and {VOCAB - 1}"),
    ("completions", {"logit_bias": {"a": 1}}, "logit_bias", "'a' is not a token id"),
    ("completions", {"logit_bias": {"1": True}}, "logit_bias", "logit_bias.1 is a boolean"),
    ("completions", {"logit_bias": {"1": 1, "01": 1}}, "logit_bias", "twice"),
    ("completions", {"logit_bias": [1]}, "logit_bias", "logit_bias is a list"),
    ("completions", {"bad_words": "a"}, "bad_words", "bad_words is a string"),
    ("completions", {"bad_words": [1]}, "bad_words", "bad_words.0 is a number"),
    ("completions", {"bad_words": [[1, "a"]]}, "bad_words", "bad_words.0.1 is a string"),
    ("completions", {"bad_words": [[]]}, "bad_words", "1 to 64 tokens"),
    ("completions", {"bad_words": [[1], [2]], "allowed_token_ids": [1, 2]}, "bad_words", "every one"),
    ("completions", {"bad_words": ["\ud800"]}, "bad_words", "Unicode"),
    ("completions", {"cache_salt": "a\udfff"}, "cache_salt", "Unicode"),
    ("completions", {"user": "\ud800"}, "user", "Unicode"),
    ("completions", {"\ud800": 1}, "body", "Unicode"),
    ("completions", {"structured_outputs": {"\ud800": 1}}, "structured_outputs", "Unicode"),
    ("completions", {"logprob_token_ids": [1]}, "logprob_token_ids", "not supported"),
    ("chat/completions", {"messages": [{"role": "user", "content": "\ud83d"}]}, "messages", "Unicode"),
    ("chat/completions",
     {**HELLO, "tools": [{"type": "function", "function": {"name": "f", "description": "\ud800"}}]},
     "tools", "Unicode"),
    ("completions", {"response_format": {"type": "xml"}}, "response_format", "'xml' is not supported"),
    ("completions", {"response_format": {"type": "json_schema"}}, "response_format", "schema is missing"),
    ("completions", {"response_format": 5}, "response_format", "an object"),
    ("completions", {"structured_outputs": {}}, "structured_outputs", "got 0"),
    ("completions", {"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs", "got 2"),
    ("completions", {"structured_outputs": {"whatever": 1}}, "structured_outputs", "whatever is not supported"),
    ("completions", {"guided_regex": "a", "guided_json": {}}, "guided_regex", "both"),
    ("completions", {"guided_choice": [1]}, "guided_choice", "a list of texts"),
    ("completions", {"guided_regex": 5}, "guided_regex", "a text"),
    ("completions", {"guided_regex": ""}, "guided_regex", "1 to 65536 characters"),
    ("completions", {"guided_regex": "a" * 65537}, "guided_regex", "1 to 65536 characters"),
    ("completions", {"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "end-of-sequence"),
    ("chat/completions", {"messages": [{"role": "user", "content": "a"}], "logprobs": 1}, "logprobs", "true or false"),
    ("chat/completions", {"messages": [{"role": "user", "content": "a"}], "top_logprobs": 1}, "top_logprobs", "true"),
    ("chat/completions", {"messages": [{"role": "user", "content": "a"}], "echo": True}, "echo", "not supported"),
    ("chat/completions", {**HELLO, "max_completion_tokens": 0}, "max_completion_tokens", "max_completion_tokens must"),
    ("chat/completions", {**HELLO, "max_completion_tokens": 512, "max_tokens": 5},
     "max_completion_tokens", "max_completion_tokens 512 leaves no room"),
    ("chat/completions", {**HELLO, "max_completion_tokens": 500},
     "max_completion_tokens", "max_completion_tokens is 500"),
    ("chat/completions", {**HELLO, "max_tokens": 500}, "max_tokens", "max_tokens is 500"),
    ("chat/completions", {}, "messages", "missing"),
    ("chat/completions", {"messages": []}, "messages", "empty"),
    ("chat/completions", {"messages": [{"role": "user", "content": "a"}], "prompt": "a"}, "prompt", "exactly one"),
    ("chat/completions", {"messages": [{"role": "user", "tool_calls": [{}]}]}, "messages", "only an assistant"),
    ("chat/completions", {"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages", "has a name"),
    ("chat/completions", {"messages": [{"role": "assistant", "tool_calls": {"a": 1}}]}, "messages", "is a list"),
    ("chat/completions",
     {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": []}}]}]},
     "messages", "JSON object"),
    ("chat/completions", {**HELLO, "tools": {}}, "tools", "a list"),
    ("chat/completions", {**HELLO, "tools": [5]}, "tools", "tools.0 is not an object"),
    ("chat/completions", {**HELLO, "tools": [{"type": "web_search"}]}, "tools", "not 'function'"),
    ("chat/completions", {**HELLO, "tools": [{"type": "function"}]}, "tools", "has a name"),
    ("chat/completions", {**HELLO, "tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools", "letters"),
    ("chat/completions", {**HELLO, "tools": [TOOL] * 1025}, "tools", "at most 1024"),
    ("chat/completions", {**HELLO, "tools": [TOOL]}, "tools", "not known"),
    ("chat/completions", {**HELLO, "tool_choice": "required"}, "tool_choice", "no tools"),
    ("chat/completions", {**HELLO, "tools": [TOOL], "tool_choice": "any"}, "tool_choice", "names a function"),
    ("chat/completions",
     {**HELLO, "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice", "'g'"),
    ("chat/completions", {**HELLO, "tools": [TOOL], "parallel_tool_calls": 1}, "parallel_tool_calls", "true or"),
    ("chat/completions", {**HELLO, "documents": [{"text": "a"}]}, "documents", "does not read"),
    ("chat/completions", {**HELLO, "documents": "a"}, "documents", "a string"),
    ("chat/completions", {**HELLO, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "'messages'"),
    ("chat/completions", {**HELLO, "chat_template_kwargs": 5}, "chat_template_kwargs", "a number"),
    ("chat/completions", {**HELLO, "reasoning_effort": "low"}, "reasoning_effort", "'reasoning_effort'"),
    ("chat/completions", {**HELLO, "continue_final_message": True, "add_generation_prompt": True},
     "continue_final_message", "does not go"),
    ("chat/completions", {"messages": [{"role": "user"}]}, "messages", "content"),
    ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", "image_url"),
    ("chat/completions", {"messages": [{"role": "user", "content": "a"}], "tools": [{}]}, "tools", "not 'function'"),
    ("chat/completions", {"messages": [{"role": "user", "content": "a" * 5000}]}, "messages", "length is 512"),
    ("chat/completions", {"messages": "hello"}, "messages", "list"),
    ("chat/completions", {"messages": ["hello"]}, "messages", "messages.0 is a string"),
    ("chat/completions", {"messages": [{"content": "a"}]}, "messages", "messages.0.role is missing"),
    ("chat/completions", {"messages": [{"role": 1, "content": "a"}]}, "messages", "messages.0.role is a number"),
    ("chat/completions", {"messages": [{"role": "user", "content": 1}]}, "messages", "messages.0.content is a number"),
    ("chat/completions", {"messages": [{"role": "user", "content": [1]}]}, "messages", "messages.0.content.0 is a"),
    ("chat/completions", {"messages": [{"role": "user", "content": "a"}] * 512}, "messages", "length is 512"),
    ("chat/completions", {"messages": [{"role": "alien", "content": "a"}]}, "messages", "messages.0.role is 'alien'"),
    ("completions", {"prompt": [1, True]}, "prompt", "prompt.1 is a boolean"),
    ("completions", {"prompt": [1, "a"]}, "prompt", "prompt.1 is a string"),
    ("completions", {"prompt": [[1, 1.5]]}, "prompt", "prompt.0.1 is a number"),
    ("completions", {"prompt": [None]}, "prompt", "prompt.0 is null"),
    ("completions", {"stop": 5}, "stop", "stop is a number"),
    ("completions", {"stop": ["a", 5]}, "stop", "stop.1 is a number"),
    ("completions", {"stop_token_ids": "5"}, "stop_token_ids", "a list"),
    ("completions", {"stop_token_ids": [5, 1.5]}, "stop_token_ids", "stop_token_ids.1"),
]  # fmt: skip

BODIES: list[tuple[bytes, str]] = [
    (b"", "not JSON"),
    (b"{", "not JSON"),
    (b"[]", "not a JSON object"),
    (b'{"prompt": "\xff"}', "UTF-8"),
    (b'{"prompt": "a", "temperature": NaN}', "NaN"),
    (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested"),
    (b'{"prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}", "a number in it is too long"),
    (b'{"prompt": "a", "\\ud800": 1}', "Unicode"),
    (b'{"prompt": "' + b"a" * (10 << 20) + b'"}', "8388608 bytes"),
]


async def nothing_happened(router: RunningRouter) -> None:
    assert router.pods[0].submits == []
    assert await router.metric("pagewire_router_requests_active") == 0


async def test_http_refuses_by_name(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router:
        table = [("completions", {"prompt": "hello", **fields}, field, part) for fields, field, part in COMPLETIONS]
        table += [
            (path, {"prompt": "hello", **fields} if path == "completions" else fields, field, part)
            for path, fields, field, part in HTTP_ONLY
        ]
        for path, body, field, part in table:
            for stream in (False, True):
                data = json.dumps({"stream": stream, **body} if "stream_options" not in body else body)
                answer = await router.http.post(f"/v1/{path}", content=data)
                assert answer.status_code == (404 if field == "model" else 400), (body, answer.text)
                error = answer.json()["error"]
                assert error["param"] == field, (body, error)
                assert part in error["message"], (body, error)
                assert error["type"] == "invalid_request_error"
        await nothing_happened(router)


async def test_nothing_is_counted_of_what_would_be_refused(start: StartRouter) -> None:
    """But for what is too long: how long it is, whoever counts wants to know."""
    async with start(FakePod("c0")) as router:
        for path, body, field, part in HTTP_ONLY:
            if path != "chat/completions" or "messages" not in body or "length is" in part or "is 500" in part:
                continue
            answer = await router.http.post("/tokenize", content=json.dumps(body))
            assert answer.status_code == 400, (body, answer.text)
            error = answer.json()["error"]
            assert error["param"] == field, (body, error)
            assert part in error["message"], (body, error)


async def test_what_asks_for_nothing_is_taken(start: StartRouter) -> None:
    nothing: list[dict[str, Any]] = [
        {"max_completion_tokens": None, "parallel_tool_calls": None, "messages": None},
        {"parallel_tool_calls": True, "service_tier": "auto", "prompt_cache_retention": "in_memory"},
        {"service_tier": "default", "prompt_cache_retention": "in-memory"},
        {"user": "a", "session_id": "b", "safety_identifier": "c", "prompt_cache_key": "d", "store": True},
    ]
    async with start(FakePod("c0")) as router:
        for fields in nothing:
            for path in ("/v1/completions", "/tokenize"):
                answer = await router.http.post(path, json={"prompt": "hello", **fields})
                assert answer.status_code == 200, answer.text


async def test_a_model_that_does_not_reason_may_be_asked_not_to(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router:
        for fields in ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}):
            for path in ("/v1/chat/completions", "/tokenize"):
                answer = await router.http.post(path, json={**HELLO, **fields})
                assert answer.status_code == 200, answer.text


async def test_http_refuses_bodies_that_are_none(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router:
        for body, part in BODIES:
            answer = await router.http.post("/v1/completions", content=body)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "body"
            assert part in answer.json()["error"]["message"]
        await nothing_happened(router)


async def test_a_compressed_body_is_told_that_it_is_one(start: StartRouter) -> None:
    plain = json.dumps({"prompt": "hello", "max_tokens": 2}).encode()
    zipped = gzip.compress(plain)
    async with start(FakePod("c0")) as router:
        for encoding, path in (
            ("gzip", "/v1/completions"), ("Gzip", "/tokenize"), ("identity, br", "/v1/messages"),
        ):  # fmt: skip
            answer = await router.http.post(path, content=zipped, headers={"content-encoding": encoding})
            assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "identity")
            error = answer.json()["error"]
            assert (error["code"], error["param"]) == ("unsupported_encoding", "body")
            assert repr(encoding.rpartition(" ")[2]) in error["message"]
        large, coded = zipped * 100_000, {"content-encoding": "gzip"}
        assert (await router.http.post("/v1/completions", content=large, headers=coded)).status_code == 415
        await nothing_happened(router)
        for encoding in ("identity", "", "Identity"):
            answer = await router.http.post("/v1/completions", content=plain, headers={"content-encoding": encoding})
            assert answer.status_code == 200, answer.text


async def test_whole_characters_may_be_written_as_surrogates(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router:
        answer = await router.http.post("/tokenize", content=b'{"prompt": "\\ud83d\\ude00 \\\\ud800"}')
        back = await router.http.post("/detokenize", json={"tokens": answer.json()["tokens"]})
        assert back.json() == {"prompt": "\N{GRINNING FACE} \\ud800"}


# many values, each of them wrong or too many: (path, what goes before, what is repeated, what goes after, field)
MANY: list[tuple[str, str, str, str, str]] = [
    ("completions", '{"prompt": [', "1.5", "]}", "prompt"),
    ("completions", '{"prompt": [[', "1.5", "]]}", "prompt"),
    ("completions", '{"prompt": [', "1", "]}", "prompt"),
    ("completions", '{"prompt": [', "[]", "]}", "prompt"),
    ("completions", '{"prompt": "a", "stop": [', "1", "]}", "stop"),
    ("completions", '{"prompt": "a", "stop": [', '"a"', "]}", "stop"),
    ("completions", '{"prompt": "a", "stop_token_ids": [', "1.5", "]}", "stop_token_ids"),
    ("completions", '{"prompt": "a", "stop_token_ids": [', "1", "]}", "stop_token_ids"),
    ("completions", '{"prompt": "a", "allowed_token_ids": [', "1.5", "]}", "allowed_token_ids"),
    ("completions", '{"prompt": "a", "allowed_token_ids": [', "1", "]}", "allowed_token_ids"),
    ("completions", '{"prompt": "a", "bad_words": [', "[]", "]}", "bad_words"),
    ("completions", '{"prompt": "a", "bad_words": [[', "1", "]]}", "bad_words"),
    ("completions", '{"prompt": "a", "guided_choice": [', '"a"', "]}", "guided_choice"),
    ("completions", '{"prompt": "a", "response_format": [', "1", "]}", "response_format"),
    ("completions", '{"prompt": ["a", ', "1", "]}", "prompt"),
    ("chat/completions", '{"messages": [{"role": "user", "content": "a"}], "tools": [', "1", "]}", "tools"),
    ("chat/completions", '{"messages": [{"role": "user", "content": "a"}], "documents": [', "1", "]}", "documents"),
    ("chat/completions", '{"messages": [{"role": "assistant", "tool_calls": [', "{}", "]}]}", "messages"),
    ("chat/completions", '{"messages": [', "1", "]}", "messages"),
    ("chat/completions", '{"messages": [', "{}", "]}", "messages"),
    ("chat/completions", '{"messages": [', '{"role":"user","content":"a"}', "]}", "messages"),
    ("chat/completions", '{"messages": [{"role": "user", "content": [', "1", "]}]}", "messages"),
    ("chat/completions", '{"messages": [{"role": "user", "content": [', "{}", "]}]}", "messages"),
]


async def test_many_wrong_values_cost_no_more_than_one(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router:
        for path, before, value, after, field in MANY:
            num_parts = value.count('"') // 2 + value.count("[") + value.count("{")
            count = (MAX_PARTS - 16) // num_parts if num_parts else MAX_VALUES - 8  # more are refused unread
            data = before + ",".join([value] * min(count, (2 << 20) // (len(value) + 1))) + after
            tracemalloc.start()
            try:
                answer = await router.http.post(f"/v1/{path}", content=data)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, field), (before, value, answer.text)
            assert len(answer.content) < 500
            assert peak < 100 << 20, (before, value, peak)
        await nothing_happened(router)


def message(fields: dict[str, Any]) -> pb.GenerateRequest:
    fields = {"prompt": "hello", **fields}
    prompt = fields.pop("prompt")
    stop = fields.pop("stop", [])
    bad_words = fields.pop("bad_words", [])
    sampling = {name: fields.pop(name) for name in list(fields) if name in pb.Sampling.DESCRIPTOR.fields_by_name}
    request = pb.GenerateRequest(sampling=pb.Sampling(stop=stop, bad_words=bad_words, **sampling), **fields)
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.tokens.SetInParent()
        request.tokens.token_ids.extend(prompt)
    return request


async def refusal(router: RunningRouter, request: pb.GenerateRequest) -> tuple[grpc.StatusCode, str, str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        [answer async for answer in router.rpc.Generate(request)]
    status = rpc_status.from_call(raised.value)
    assert status is not None
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status.details:
        detail.Unpack(info) or detail.Unpack(bad)
    return raised.value.code(), info.reason, bad.field_violations[0].field, status.message


async def test_grpc_refuses_the_same_by_name(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router:
        for fields, field, part in COMPLETIONS:
            code, reason, named, text = await refusal(router, message(fields))
            want = grpc.StatusCode.NOT_FOUND if field == "model" else grpc.StatusCode.INVALID_ARGUMENT
            assert (code, named) == (want, field), (fields, text)
            is_long = "maximum context length" in text
            wanted = "context_length_exceeded" if is_long else "invalid_request"
            assert reason == ("model_not_found" if field == "model" else wanted)
            assert part in text
        code, _, named, _ = await refusal(router, pb.GenerateRequest())
        assert (code, named) == (grpc.StatusCode.INVALID_ARGUMENT, "prompt")
        code, _, named, _ = await refusal(router, pb.GenerateRequest(chat=pb.ChatPrompt()))
        assert (code, named) == (grpc.StatusCode.INVALID_ARGUMENT, "messages")
        alien = pb.ChatPrompt(messages=[pb.ChatMessage(role="alien", content="a")])
        code, _, named, text = await refusal(router, pb.GenerateRequest(chat=alien))
        assert (code, named) == (grpc.StatusCode.INVALID_ARGUMENT, "messages")
        assert "messages.0.role is 'alien'" in text
        said = [pb.ChatMessage(role="user", content="a")]
        for chat, field in (
            (pb.ChatPrompt(messages=said, chat_template_kwargs="{"), "chat_template_kwargs"),
            (pb.ChatPrompt(messages=said, chat_template_kwargs="[]"), "chat_template_kwargs"),
            (pb.ChatPrompt(messages=said, documents=["{}", "NaN"]), "documents"),
        ):
            code, _, named, _ = await refusal(router, pb.GenerateRequest(chat=chat))
            assert (code, named) == (grpc.StatusCode.INVALID_ARGUMENT, field)
        code, _, named, _ = await refusal(router, pb.GenerateRequest(text="a", request_id="x" * 129))
        assert (code, named) == (grpc.StatusCode.INVALID_ARGUMENT, "request_id")
        await nothing_happened(router)
