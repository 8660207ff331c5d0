"""Several answers to one prompt, and answers of a given shape. Usage: python shaped.py [ROUTER]"""

from __future__ import annotations

import sys

from pagewire.client import Client, Message

CITY = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "people": {"type": "integer"}},
    "required": ["name", "people"],
    "additionalProperties": False,
}


def main(router: str) -> None:
    """Draw three answers; then have one that is JSON of a schema, and one that is yes or no."""
    with Client(router) as client:
        result = client.generate("Once upon a time", n=3, max_tokens=12, temperature=0.8, seed=1, logprobs=0)
        for output in result.outputs:
            print(f"{sum(token.logprob or 0.0 for token in output.logprobs):.1f} {output.text!r}")
        chat = [Message(role="user", content="Describe a city.")]
        print(client.generate(chat, json_schema=CITY, max_tokens=64).text)
        print(client.generate("Is water wet? Answer:", regex=" (yes|no)", max_tokens=4).text)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50050")
