"""Runs in a container of its own beside the stack: asks the router by HTTP and by the SDK, one answer a line.

ask.py ROUTER PROMPTS ROUNDS AT_ONCE    PROMPTS is JSON
"""

from __future__ import annotations

import json
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import httpx

from pagewire.client import Client, Message

MAX_TOKENS = 48


def address(router: str) -> str:
    """Return the router's address, looked up once.

    Podman's name server drops its sockets whenever a container comes or goes (containers/aardvark-dns#389): a test that
    kills pods asks about Pagewire, not about names. This container itself came just now: hence the second look.
    """
    try:
        return socket.gethostbyname(router)
    except socket.gaierror:
        time.sleep(1)
        return socket.gethostbyname(router)


def by_http(router: str, prompt: str) -> dict[str, str]:
    """Return the answer of OpenAI's API."""
    body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": MAX_TOKENS}
    answer = httpx.post(f"http://{router}:8000/v1/chat/completions", json=body, timeout=300.0, trust_env=False)
    answer.raise_for_status()
    return {"text": answer.json()["choices"][0]["message"]["content"]}


def by_sdk(router: str, prompt: str) -> dict[str, str]:
    """Return the answer of the SDK's stream, where it was made, and what its blocks came by."""
    with Client(f"{router}:50050") as client:
        messages = [Message(role="user", content=prompt)]
        with client.stream(messages, max_tokens=MAX_TOKENS, temperature=0.0) as stream:
            text = "".join(chunk.text for chunk in stream)
        transfer = stream.result.transfer
        assert transfer is not None
        return {"text": text, "decode_pod": transfer.decode_pod, "transport": transfer.transport}


def main(router: str, prompts: list[str], rounds: int, at_once: int) -> None:
    """Ask every prompt by both doors, `rounds` times."""
    doors = {"sdk": by_sdk, "http": by_http}
    asked = [(door, prompt) for _ in range(rounds) for prompt in prompts for door in doors]

    one_at_a_time = Lock()

    def ask(what: tuple[str, str]) -> None:
        door, prompt = what
        line = json.dumps({"door": door, "prompt": prompt, **doors[door](router, prompt)})
        with one_at_a_time:
            print(line, flush=True)

    with ThreadPoolExecutor(at_once) as threads:
        list(threads.map(ask, asked))


if __name__ == "__main__":
    main(address(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
