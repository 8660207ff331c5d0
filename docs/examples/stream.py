"""Stream answers, several at once, and leave one early. Usage: python stream.py [ROUTER]"""

from __future__ import annotations

import asyncio
import sys

from pagewire.client import AsyncClient, Message


async def main(router: str) -> None:
    """Print the tokens of two chats as they come, then stop a third after a few characters."""
    async with AsyncClient(router) as client:
        await asyncio.gather(*(tell(client, name) for name in ("Ada", "Alan")))
        async with client.stream("Count: one, two,", max_tokens=200) as stream:
            text = ""
            async for chunk in stream:
                text += chunk.text
                if len(text) > 20:
                    break  # leaving the block cancels the request: the pods stop within a step
        print(f"left after {text!r}")


async def tell(client: AsyncClient, name: str) -> None:
    """Stream one chat."""
    async with client.stream([Message(role="user", content=f"Who was {name}?")], max_tokens=24) as stream:
        async for chunk in stream:
            print(f"[{name}] {chunk.text!r}")
        print(f"[{name}] {stream.result.usage.completion_tokens} tokens in all")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50050"))
