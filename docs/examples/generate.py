"""Ask for an answer, and read what it cost. Usage: python generate.py [ROUTER]"""

from __future__ import annotations

import sys

from pagewire.client import Client, Message


def main(router: str) -> None:
    """Ask one question, once as a text to go on with and once as a chat."""
    with Client(router) as client:
        info = client.model_info()
        print(f"{info.model} takes {info.max_model_len} tokens")
        result = client.generate("The capital of France is", max_tokens=8, temperature=0.0)
        print(repr(result.text), result.finish_reason.value)
        chat = [Message(role="user", content="Name three prime numbers.")]
        print(f"the chat is {len(client.tokenize(chat))} tokens")
        result = client.generate(chat, max_tokens=32, seed=7)
        print(f"{result.usage.completion_tokens} tokens, {result.usage.cached_tokens} of the prompt's were cached")
        for timeline in result.timelines:
            start_s = timeline.stamps[0].at_s
            for stamp in timeline.stamps:
                print(f"{timeline.process}: {stamp.phase.value} after {stamp.at_s - start_s:.3f} s")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50050")
