"""A Hugging Face tokenizer folder, read with `tokenizers` alone: text to ids as transformers would, ids to text.

Knows files and ids, nothing of requests. Long texts are encoded in a thread, since the encoder lets go of the
interpreter. Invariant: `encode` and `render_chat` return what transformers' `encode` and `apply_chat_template` return
for the same folder (a test holds them together); what is added to a text is ruled by `tokenizer.json` alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers

from pagewire.core.errors import InvalidRequest
from pagewire.core.fingerprint import tokenizer_digest
from pagewire.text.chat_template import ChatTemplate
from pagewire.text.detokenizer import Detokenizer

INLINE_CHARS = 2048  # encoding this much takes well under a millisecond: a thread would cost more
ENCODE_THREADS = 2
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """The tokenizer of one model. Raises FileNotFoundError or ValueError where the folder holds none."""

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        data = path.read_bytes()
        self.digest = tokenizer_digest(data)
        self._tokenizer: Any = tokenizers.Tokenizer.from_str(data.decode())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        config = _json(folder / "tokenizer_config.json")
        named = _named_tokens(folder, config)
        self._add_missing(named, config)
        source = _template_source(folder, config)
        self._template = None if source is None else ChatTemplate(source, named)
        self._special_ids = frozenset(
            token_id for token_id, token in self._tokenizer.get_added_tokens_decoder().items() if token.special
        )
        self._added_ids = frozenset(self._tokenizer.get_added_tokens_decoder())
        self._is_byte_level = "ByteLevel" in json.dumps(json.loads(data).get("decoder"))
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self._byte_ids = frozenset(
            token_id for text, token_id in vocabulary.items() if len(text) == 6 and text.startswith("<0x")
        )
        # A model may have more rows than its tokenizer names; ids up to there are legal.
        self.vocab_size = max(_json(folder / "config.json").get("vocab_size", 0), max(vocabulary.values()) + 1)
        self._longest = max(len(text) for text in vocabulary)
        self._threads = ThreadPoolExecutor(ENCODE_THREADS, thread_name_prefix="tokenize")

    @property
    def has_chat_template(self) -> bool:
        """True where the model says how a chat is written."""
        return self._template is not None

    def min_tokens(self, text: str) -> int:
        """Return a number of tokens that `text` has at least, without encoding it."""
        return 0 if self._tokenizer.normalizer is not None else len(text) // self._longest

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`, with what the post-processor adds (a bos, say) unless told otherwise."""
        if len(text) <= INLINE_CHARS:
            return self.encode_now(text, add_special_tokens=add_special_tokens)
        encode = partial(self.encode_now, text, add_special_tokens=add_special_tokens)
        return await asyncio.get_running_loop().run_in_executor(self._threads, encode)

    def encode_now(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return what `encode` returns, in the calling thread."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def render_chat(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """Return the prompt text of a chat, up to the assistant's turn unless told otherwise.

        Raises InvalidRequest without a template, or where it refuses the messages.
        """
        if self._template is None:
            raise InvalidRequest("this model has no chat template: use a text or token prompt", field="messages")
        return self._template.render(messages, add_generation_prompt=add_generation_prompt)

    def decode(self, ids: list[int]) -> str:
        """Return the text of `ids` without special tokens."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """Return the UTF-8 of one token by itself, b"" for an id without a token; not always whole characters."""
        text = self._tokenizer.id_to_token(token_id)
        if text is None:
            return b""
        if token_id in self._added_ids:
            return str(text).encode()
        if self._is_byte_level:
            return b"".join(_BYTE_OF.get(character, character.encode()) for character in text)
        if token_id in self._byte_ids:
            return bytes([int(text[3:5], 16)])
        return str(text).replace("\u2581", " ").encode()

    def detokenizer(self) -> Detokenizer:
        """Return a detokenizer for one token stream."""
        return Detokenizer(self.decode, silent_ids=self._special_ids, byte_ids=self._byte_ids)

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _add_missing(self, named: Mapping[str, str], config: Mapping[str, Any]) -> None:
        extra = config.get("additional_special_tokens") or config.get("extra_special_tokens") or []
        contents = [*named.values(), *(_content(token) for token in extra if _content(token))]
        missing = [text for text in dict.fromkeys(contents) if self._tokenizer.token_to_id(text) is None]
        self._tokenizer.add_special_tokens(
            [tokenizers.AddedToken(text, special=True, normalized=False) for text in missing]
        )


def _byte_characters() -> dict[str, bytes]:
    # GPT-2's table: printable bytes stand for themselves, the others for characters from 256 on.
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): bytes([byte]) for byte in printable} | {
        chr(256 + place): bytes([byte]) for place, byte in enumerate(others)
    }


_BYTE_OF = _byte_characters()


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise ValueError(f"{path} is not a JSON object")
    return value


def _content(token: Any) -> str:
    """The text of a token that is written as a string or as an AddedToken's JSON."""
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")


def _named_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    merged = {**_json(folder / "special_tokens_map.json"), **config}
    return {name: _content(merged[name]) for name in NAMED_TOKENS if merged.get(name)}


def _template_source(folder: Path, config: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    source = config.get("chat_template")
    if isinstance(source, list):
        source = next((entry["template"] for entry in source if entry.get("name") == "default"), None)
    return source if isinstance(source, str) else None
