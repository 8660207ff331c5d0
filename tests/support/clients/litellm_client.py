"""Talks to the server at argv[1] with LiteLLM, as its users do; exits with an error where an answer is not as told.

The model behind it has to say what the last message says.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import litellm
from litellm.exceptions import BadRequestError, ContextWindowExceededError

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "of today",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


async def main() -> None:
    asked: dict[str, Any] = {
        "model": "hosted_vllm/fake", "api_base": sys.argv[1], "api_key": "none", "max_retries": 0,
    }  # fmt: skip
    answer: Any = await litellm.acompletion(messages=[{"role": "user", "content": "hello"}], **asked)
    assert answer.choices[0].message.content == "hello"
    assert answer.usage.prompt_tokens > 0
    stream: Any = await litellm.acompletion(messages=[{"role": "user", "content": "hello"}], stream=True, **asked)
    assert "".join([part.choices[0].delta.content or "" async for part in stream]) == "hello"
    called: Any = await litellm.acompletion(messages=[{"role": "user", "content": CALL}], tools=TOOLS, **asked)
    (call,) = called.choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Paris"}')
    assert called.choices[0].finish_reason == "tool_calls"
    text: Any = await litellm.atext_completion(
        prompt="hello", **{**asked, "model": "text-completion-openai/fake"}, max_tokens=2
    )
    assert text.choices[0].text
    try:
        await litellm.acompletion(messages=[{"role": "user", "content": "a"}], max_tokens=-1, **asked)
    except BadRequestError as error:
        if "max_tokens" not in str(error):
            raise
    else:
        raise AssertionError("max_tokens -1 was taken")
    try:
        await litellm.acompletion(messages=[{"role": "user", "content": "far more than fits " * 100}], **asked)
    except ContextWindowExceededError:
        pass
    else:
        raise AssertionError("a prompt beyond the context was taken")


if __name__ == "__main__":
    asyncio.run(main())
    print("done")
