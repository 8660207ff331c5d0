"""A chat in which the model calls a function, and one in which it has to. Usage: python tools.py [ROUTER]

The model has to know tools: Qwen2.5, Qwen3 and Llama 3.1 do, SmolLM2 does not.
"""

from __future__ import annotations

import sys

from pagewire.client import Client, Message, Tool

WEATHER = Tool(
    name="get_weather",
    description="The weather in a city, now",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 40}},
        "required": ["city"],
        "additionalProperties": False,
    },
)


def get_weather(city: str) -> str:
    """Return what the tool says."""
    return f"18 degrees and some rain in {city}"


def main(router: str) -> None:
    """Go round with a tool: the model calls it, is told what it said, and answers."""
    chat = [Message(role="user", content="What is the weather in Paris?")]
    with Client(router) as client:
        result = client.generate(chat, tools=[WEATHER], max_tokens=200)
        chat.append(result.message)
        for call in result.tool_calls:
            print(f"it calls {call.name}({call.arguments})")
            chat.append(Message(role="tool", content=get_weather(**call.parsed()), tool_call_id=call.id))
        print(client.generate(chat, tools=[WEATHER], max_tokens=200).text)
        with client.stream(chat[:1], tools=[WEATHER], tool_choice=WEATHER, max_tokens=200) as stream:
            for chunk in stream:
                for part in chunk.tool_calls:
                    print(f"{part.name} of " if part.name else "", part.arguments, sep="", end="", flush=True)
        print()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50050")
