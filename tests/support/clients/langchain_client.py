"""Talks to the server at argv[1] with LangChain, as its users do; exits with an error where an answer is not as told.

The model behind it has to say what the last message says.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import SecretStr

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
    url, key = sys.argv[1], SecretStr("none")
    chat = ChatOpenAI(model="fake", base_url=url, api_key=key, max_retries=0, stream_usage=True)
    answer = await chat.ainvoke([("system", "be brief"), ("human", "hello")])
    assert answer.content == "hello"
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] > 1
    parts = [part async for part in chat.astream("the capital of France")]
    assert "".join(str(part.content) for part in parts) == "the capital of France"
    bound = chat.bind_tools(TOOLS)
    called = await bound.ainvoke(CALL)
    assert isinstance(called, AIMessage)
    assert [(each["name"], each["args"]) for each in called.tool_calls] == [("get_weather", {"city": "Paris"})]
    whole: Any = None
    async for part in bound.astream(CALL):
        whole = part if whole is None else whole + part
    assert [(each["name"], each["args"]) for each in whole.tool_calls] == [("get_weather", {"city": "Paris"})]
    result = ToolMessage("sunny", tool_call_id=str(called.tool_calls[0]["id"]))
    assert (await bound.ainvoke([HumanMessage(CALL), called, result])).content == "sunny"
    try:
        await chat.ainvoke("far more than fits " * 100)
    except ContextOverflowError:
        pass
    else:
        raise AssertionError("a prompt beyond the context was taken")
    llm = OpenAI(model="fake", base_url=url, api_key=key, max_retries=0, max_tokens=3)
    results = await llm.agenerate(["hello", "xyz"])  # one request with two prompts
    assert len(results.generations) == 2
    assert all(generations[0].text for generations in results.generations)


if __name__ == "__main__":
    asyncio.run(main())
    print("done")
