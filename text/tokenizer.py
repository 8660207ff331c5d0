"""A Hugging Face tokenizer folder, read with `tokenizers` alone: text to ids as transformers would, ids to text.

Knows files and ids, nothing of requests. Long texts are encoded in a thread, as batches of one: for batches alone does
the encoder let go of the interpreter. Invariant: `encode` and `render_chat` return what transformers' `encode` and
`apply_chat_template` return for the same folder (a test holds them together); what is added to a text is ruled by
`tokenizer.json` alone.
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

from pagewire.core.document_files import read_object
from pagewire.core.documents import parse_object, whole
from pagewire.core.errors import InvalidRequest
from pagewire.core.fingerprint import tokenizer_digest
from pagewire.text.chat_template import ChatTemplate
from pagewire.text.detokenizer import Detokenizer
from pagewire.text.text_stream import PLAIN, TextRules, TextStream
from pagewire.text.token_places import TokenPlaces, places_within

INLINE_CHARS = 2048  # encoding this much takes well under a millisecond: a thread would cost more
ENCODE_THREADS = 2
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """The tokenizer of one model. Raises FileNotFoundError or ValueError where the folder holds none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / "tokenizer.json"
        data = path.read_bytes()
        self.digest = tokenizer_digest(data)
        self._tokenizer: Any = _opened(path, data)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        config = _json(folder / "tokenizer_config.json")
        named = _named_tokens(folder, config)
        self._add_missing(named, config)
        sources = _template_sources(folder, config)
        self._templates = {name: ChatTemplate(source, named) for name, source in sources.items()}
        self._special_ids = frozenset(
            token_id for token_id, token in self._tokenizer.get_added_tokens_decoder().items() if token.special
        )
        self._added_ids = frozenset(self._tokenizer.get_added_tokens_decoder())
        decoder = parse_object(data, str(path)).get("decoder")
        self._is_byte_level = "ByteLevel" in json.dumps(decoder)
        joins_bytes = isinstance(decoder, dict) and decoder.get("type") == "ByteLevel"
        self._wholes: dict[int, str | None] | None = {} if joins_bytes else None
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self._byte_ids = frozenset(
            token_id for text, token_id in vocabulary.items() if len(text) == 6 and text.startswith("<0x")
        )
        # A model may have more rows than its tokenizer names; ids up to there are legal.
        rows = _json(folder / "config.json")
        self._num_named = max(vocabulary.values()) + 1
        self.vocab_size = max(whole(rows, "vocab_size") if "vocab_size" in rows else 0, self._num_named)
        # Ids of no token have no text. Left to the decoder, they would fill a window without ever adding to it.
        self._nameless_ids = frozenset(range(self._num_named)) - set(vocabulary.values())
        self._longest = max(len(text) for text in vocabulary)
        self._threads = ThreadPoolExecutor(ENCODE_THREADS, thread_name_prefix="tokenize")

    @property
    def has_chat_template(self) -> bool:
        """True where the model says how a chat is written."""
        return self.chat_template is not None

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The template of a chat, None where the model has none."""
        return self._templates.get("default")

    @property
    def tool_template(self) -> ChatTemplate | None:
        """The template of a chat with tools, None where the model has none that reads them."""
        template = self._templates.get("tool_use") or self.chat_template
        return template if template is not None and "tools" in template.variables else None

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
        if len(text) <= INLINE_CHARS:
            encoding = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        else:
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def render_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """Return the prompt text of a chat, up to the assistant's turn; `options` are those of `ChatTemplate.render`.

        Raises InvalidRequest without a template, or where it refuses the messages.
        """
        template = self.tool_template if options.get("tools") else self.chat_template
        if template is None:
            wanted = " for tools" if options.get("tools") else ": use a text or token prompt"
            field = "tools" if options.get("tools") else "messages"
            raise InvalidRequest(f"this model has no chat template{wanted}", field=field)
        return template.render(messages, **options)

    async def rendered(self, messages: Sequence[Mapping[str, Any]], *, is_short: bool, **options: Any) -> str:
        """Return what `render_chat` returns, from a thread unless the chat `is_short`: nobody waits for a long one."""
        if is_short:
            return self.render_chat(messages, **options)
        render = partial(self.render_chat, messages, **options)
        return await asyncio.get_running_loop().run_in_executor(self._threads, render)

    def decode(self, ids: list[int]) -> str:
        """Return the text of `ids` without special tokens."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def decode_all(self, ids: list[int]) -> str:
        """Return the text of `ids`, special tokens too."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def token_text(self, token_id: int) -> str:
        """Return what the vocabulary calls a token, "" for an id without one."""
        return str(self._tokenizer.id_to_token(token_id) or "")

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

    def token_id(self, text: str) -> int | None:
        """Return the id of the token that is called `text`, None where none is."""
        token_id: int | None = self._tokenizer.token_to_id(text)
        return token_id

    def special_id(self, text: str) -> int | None:
        """Return the id of the special token `text`, None where it is none."""
        token_id = self.token_id(text)
        return token_id if token_id in self._special_ids else None

    def detokenizer(self, rules: TextRules = PLAIN) -> Detokenizer:
        """Return a detokenizer for one token stream."""
        shown = {self.special_id(text) for text in rules.shown}
        silent = self._nameless_ids if rules.with_special else self._nameless_ids | (self._special_ids - shown)
        return Detokenizer(
            self.decode_all,
            silent_ids=silent,
            byte_ids=self._byte_ids,
            wholes=self._wholes,
            num_ids=self._num_named,
        )

    def text_stream(self, stops: tuple[str, ...], min_tokens: int, rules: TextRules = PLAIN) -> TextStream:
        """Return the text stream of one sequence."""
        return TextStream(self.detokenizer(rules), stops, min_tokens, with_stop=rules.with_stop)

    def places(self, rules: TextRules = PLAIN, start: int = 0) -> TokenPlaces:
        """Return what tells where the tokens of one sequence begin in its text, behind `start` characters."""
        return TokenPlaces(self.detokenizer(rules), self._fallback, start)

    def places_within(self, text: str, ids: Sequence[int]) -> list[int]:
        """Return where the tokens of a prompt begin in its text, special ones being part of that."""
        return places_within(text, ids, self.places(TextRules(with_special=True)))

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _fallback(self, token_id: int) -> bytes:
        return self.token_bytes(token_id) if token_id in self._byte_ids else b""

    def _add_missing(self, named: Mapping[str, str], config: Mapping[str, Any]) -> None:
        extra = config.get("additional_special_tokens") or config.get("extra_special_tokens") or []
        if not isinstance(extra, list | dict):
            raise ValueError(f"{self.folder}: extra_special_tokens are no list: {extra!r:.100}")
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
    return read_object(path)


def _opened(path: Path, data: bytes) -> Any:
    try:
        return tokenizers.Tokenizer.from_str(data.decode())
    except Exception as error:  # the library has no class of its own for what is none
        raise ValueError(f"{path} is no tokenizer: {error!s:.300}") from error


def _content(token: Any) -> str:
    """The text of a token that is written as a string or as an AddedToken's JSON."""
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")


def _named_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    merged = {**_json(folder / "special_tokens_map.json"), **config}
    return {name: _content(merged[name]) for name in NAMED_TOKENS if merged.get(name)}


def _template_sources(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the chat templates by name, `default` and perhaps others; a file wins over the config."""
    given = config.get("chat_template")
    entries: list[Any] = given if isinstance(given, list) else [{"name": "default", "template": given}]
    sources = {
        str(each.get("name")): each["template"]
        for each in entries
        if isinstance(each, dict) and isinstance(each.get("template"), str)
    }
    files = {"default": folder / "chat_template.jinja"}
    files |= {path.stem: path for path in (folder / "additional_chat_templates").glob("*.jinja")}
    return sources | {name: path.read_text(encoding="utf-8") for name, path in files.items() if path.exists()}


def word_texts(word: str) -> tuple[str, ...]:
    """Return what `word` is in a text: at its beginning or within a word, and behind a space."""
    return (word.lstrip(), " " + word.lstrip()) if word.strip() else (word,)
