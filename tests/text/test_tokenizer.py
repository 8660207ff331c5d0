"""The tokenizer against transformers on the same folders, and the detokenizer against the full decode.

Folders: the byte-level test tokenizer with the bos and eos rules that configs can state, a SentencePiece-style one
with byte fallback, and several templates that use what real ones use.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import byte_tokenizer
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers
from transformers import AutoTokenizer

from pagewire.core.errors import InvalidRequest, UnsupportedField
from pagewire.text.detokenizer import Detokenizer
from pagewire.text.tokenizer import Tokenizer

TEXTS = (
    "",
    " ",
    "the capital of France",
    "  two  spaces \n\n and lines\t",
    "naïve café, 東京 and 🦜🏽 👩‍👩‍👧",
    "<|im_start|>user\nhello<|im_end|>",
    "x" * 5000 + " the end",
)
CHATS: tuple[list[dict[str, Any]], ...] = (
    [{"role": "user", "content": "hello"}],
    [{"role": "system", "content": "be brief"}, {"role": "user", "content": '  hi <b>"there"</b> & 東京 '}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
)
RICH = """\
{%- set ns = namespace(found=false, count=0) -%}
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {%- set ns.found = true %}
        {%- continue %}
    {%- endif %}
    {%- set ns.count = ns.count + 1 %}
    {%- if ns.count > 8 %}{% break %}{% endif %}
[{{ message.role | upper }}] {{ message['content'] | trim }}{{ eos_token }}
{% generation %}{{ message | tojson }}{% endgeneration %}
{% endfor %}
{{ {"a": [1, "é<"]} | tojson(indent=2) }} {{ dict(x=1) | tojson }} {{ ns.found }} {{ strftime_now("%Y") }}
{% if add_generation_prompt %}
    [ASSISTANT]
{% endif %}
"""
CONFIGS: tuple[dict[str, Any], ...] = (
    {},
    {"with_bos": True},
    {"with_bos": True, "add_bos_token": False},
    {"add_bos_token": True},
    {"add_bos_token": True, "add_eos_token": True},
    {"add_bos_token": False},
    {"chat_template": RICH},
    {"eos_token": {"__type": "AddedToken", "content": "<|im_end|>", "special": True}},
    {"pad_token": "<|pad|>"},
)


@pytest.fixture(params=range(len(CONFIGS)))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    config = dict(CONFIGS[request.param])
    template = config.pop("chat_template", byte_tokenizer.CHATML)
    return byte_tokenizer.save(tmp_path / "model", chat_template=template, **config)


async def test_text_and_chats_encode_as_in_transformers(folder: Path) -> None:
    ours, theirs = Tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        assert await ours.encode(text) == theirs.encode(text)
        assert await ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
    for chat in CHATS:
        rendered = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert ours.render_chat(chat) == rendered
        ids = theirs.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        assert await ours.encode(ours.render_chat(chat), add_special_tokens=False) == ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    ours.close()


@pytest.mark.smollm2
async def test_the_real_model_tokenizes_as_in_transformers(smollm2: Path) -> None:
    ours, theirs = Tokenizer(smollm2), AutoTokenizer.from_pretrained(smollm2)
    for text in TEXTS:
        ids = await ours.encode(text)
        assert ids == theirs.encode(text)
        detokenizer = ours.detokenizer()
        assert "".join(detokenizer.push(i) for i in ids) + detokenizer.finish() == ours.decode(ids)
    for chat in CHATS:
        ids = theirs.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        assert await ours.encode(ours.render_chat(chat), add_special_tokens=False) == ids
    ours.close()


THINKS = """{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content.strip() }}
</think>

{% endif %}{{ message.content }}<|im_end|>
{% endfor %}"""


@pytest.mark.parametrize("content", ["It is", "It is "])
@pytest.mark.parametrize("reasoning", [{}, {"reasoning_content": "so"}])
def test_a_message_that_goes_on_ends_where_it_does_in_transformers(
    tmp_path: Path, content: str, reasoning: dict[str, str]
) -> None:
    folder = byte_tokenizer.save(tmp_path, chat_template=THINKS)
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": content, **reasoning}]
    ours = Tokenizer(folder).render_chat(chat, add_generation_prompt=False, continue_final_message=True)
    theirs = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        chat, tokenize=False, continue_final_message=True
    )
    assert ours == theirs
    assert ours.endswith(content)


def test_a_template_file_wins_over_the_config(tmp_path: Path) -> None:
    folder = byte_tokenizer.save(tmp_path)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}!", encoding="utf-8")
    theirs = AutoTokenizer.from_pretrained(folder)
    assert Tokenizer(folder).render_chat(CHATS[0]) == "hello!"
    assert theirs.apply_chat_template(CHATS[0], tokenize=False) == "hello!"


def instructed(*roles: str) -> list[dict[str, Any]]:
    return [{"role": role, "content": f"{role[:3]} {number}"} for number, role in enumerate(roles)]


@pytest.mark.parametrize(
    ("roles", "rendered"),
    [
        ((), "user: hello;"),
        (("system",), "system: sys 0;user: hello;"),
        (("system", "system"), "system: sys 0;system: sys 1;user: hello;"),
        (("developer",), "system: dev 0;user: hello;"),
        (("system", "developer"), "system: sys 0\n\ndev 1;user: hello;"),
        (("developer", "developer", "system"), "system: dev 0\n\ndev 1\n\nsys 2;user: hello;"),
        (
            ("system", "user", "developer", "system"),
            "system: sys 0;user: use 1;system: dev 2;system: sys 3;user: hello;",
        ),
    ],
)
def test_developers_are_the_system_where_the_template_does_not_know_them(
    tmp_path: Path, roles: tuple[str, ...], rendered: str
) -> None:
    source = "{% for message in messages %}{{ message.role }}: {{ message.content }};{% endfor %}"
    chat = [*instructed(*roles), *CHATS[0]]
    assert Tokenizer(byte_tokenizer.save(tmp_path / "plain", chat_template=source)).render_chat(chat) == rendered
    knows = source + "{# developer #}"
    as_they_are = "".join(f"{each['role']}: {each['content']};" for each in chat)
    assert Tokenizer(byte_tokenizer.save(tmp_path / "knows", chat_template=knows)).render_chat(chat) == as_they_are


def test_a_developers_message_without_words_or_with_parts_is_the_systems(tmp_path: Path) -> None:
    source = "{% for message in messages %}{{ message.role }}: {{ message.content }};{% endfor %}"
    tokenizer = Tokenizer(byte_tokenizer.save(tmp_path, chat_template=source))
    system: dict[str, Any] = {"role": "system", "content": "be brief"}
    nothing: dict[str, Any] = {"role": "developer", "content": None}
    assert tokenizer.render_chat([system, nothing, system]) == "system: be brief\n\nbe brief;"
    parts: dict[str, Any] = {"role": "developer", "content": [1]}
    assert tokenizer.render_chat([system, parts]) == "system: be brief;system: [1];"


OFF: list[dict[str, object]] = [
    {"reasoning_effort": "none"},
    {"enable_thinking": False},
    {"reasoning_effort": "none", "enable_thinking": False},
]


@pytest.mark.parametrize("options", OFF)
def test_who_does_not_reason_may_be_asked_not_to(tmp_path: Path, options: dict[str, object]) -> None:
    plain = Tokenizer(byte_tokenizer.save(tmp_path / "plain"))
    assert plain.render_chat(CHATS[0], options=options) == plain.render_chat(CHATS[0])
    for unread in ({"mood": "glad"}, {"enable_thinking": True}, {"enable_thinking": 0}, {"reasoning_effort": "low"}):
        with pytest.raises(UnsupportedField, match="does not read"):
            plain.render_chat(CHATS[0], options={**options, **unread})


@pytest.mark.parametrize("reads", ["{{ enable_thinking }}", "{{ reasoning_effort }}", "<think>"])
def test_who_reasons_is_not_passed_over_where_it_cannot_be_turned_off(tmp_path: Path, reads: str) -> None:
    told = Tokenizer(byte_tokenizer.save(tmp_path, chat_template="{{ messages[0].content }}" + reads))
    for options in OFF:
        if all(name in reads for name in options):
            told.render_chat(CHATS[0], options=options)
            continue
        with pytest.raises(UnsupportedField, match="does not read"):
            told.render_chat(CHATS[0], options=options)


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('system first') }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__name__ }}",
        "{% set ns = namespace(__init__=1) %}",
        "{{ messages[5].content + 1 }}",
        "{{ messages.append(1) }}",
        "{{ range(10 ** 9) | list }}",
        "{{ 1 // 0 }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    ],
)
def test_a_template_that_refuses_or_reaches_out_is_a_named_error(tmp_path: Path, source: str) -> None:
    tokenizer = Tokenizer(byte_tokenizer.save(tmp_path, chat_template=source))
    with pytest.raises(InvalidRequest) as raised:
        tokenizer.render_chat(CHATS[0])
    assert raised.value.field == "messages"


BOMBS = {
    "loops": "{% for a in range(9999) %}" * 3 + "{% endfor %}" * 3,
    "macros": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "blocks": "{% macro w() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    + "{% call w() %}" * 30
    + "x"
    + "{% endcall %}" * 30,
    "output": "{% for a in range(9999) %}{{ messages[0].content * 99999 }}{% endfor %}",
    "text times": "{% set x = 'a' * 10 ** 12 %}",
    "times text": "{% set x = 10 ** 12 * 'a' %}",
    "list times": "{% set x = [1] * 10 ** 12 %}",
    "power": "{% set x = 10 ** (10 ** 10) %}",
    "doubled by ~": "{% set ns = namespace(t='a') %}{% for i in range(64) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}",
    "doubled by +": "{% set ns = namespace(t='a') %}{% for i in range(64) %}{% set ns.t = ns.t + ns.t %}{% endfor %}",
    "clock stopped": "{% set _tick = 1 %}{% set environment = 1 %}{% for a in range(9999) %}{% for b in range(99999) %}"
    "{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
}


@pytest.mark.parametrize("source", BOMBS.values(), ids=BOMBS.keys())
def test_a_template_takes_no_more_than_its_budget(tmp_path: Path, source: str) -> None:
    tokenizer = Tokenizer(byte_tokenizer.save(tmp_path, chat_template=source))
    with pytest.raises(InvalidRequest, match=r"takes longer|more than") as raised:
        tokenizer.render_chat(CHATS[0])
    assert raised.value.field == "messages"


async def test_a_long_chat_keeps_nobody_waiting(tmp_path: Path) -> None:
    slow = "{% for a in range(999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    tokenizer = Tokenizer(byte_tokenizer.save(tmp_path, chat_template=slow))
    rendering = asyncio.create_task(tokenizer.rendered(CHATS[0], is_short=False))
    await asyncio.sleep(0)
    turns = 0
    while not rendering.done():
        await asyncio.sleep(0.01)
        turns += 1
    with pytest.raises(InvalidRequest, match="takes longer"):
        await rendering
    assert turns > 1
    tokenizer.close()


async def test_a_long_text_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Its encoder holds the interpreter but for batches: then the loop has no turn until it is done."""
    tokenizer = Tokenizer(byte_tokenizer.save(tmp_path))
    text = "the quick brown fox jumps over the lazy dog " * 20_000
    encoding = asyncio.create_task(tokenizer.encode(text))
    turns = 0
    while not encoding.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert len(await encoding) >= len(text) // 8
    assert turns > 10
    tokenizer.close()


def test_a_template_that_is_too_long_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at most"):
        Tokenizer(byte_tokenizer.save(tmp_path, chat_template="a" * ((1 << 20) + 1)))


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    tokenizer = Tokenizer(byte_tokenizer.save(tmp_path, chat_template=None))
    assert not tokenizer.has_chat_template
    with pytest.raises(InvalidRequest, match="no chat template"):
        tokenizer.render_chat(CHATS[0])


def test_the_vocabulary_reaches_as_far_as_the_model_says(tmp_path: Path) -> None:
    folder = byte_tokenizer.save(tmp_path)
    named = Tokenizer(folder).vocab_size
    (folder / "config.json").write_text(json.dumps({"vocab_size": named + 100}), encoding="utf-8")
    assert Tokenizer(folder).vocab_size == named + 100


BYTE_LEVEL = byte_tokenizer.build()


def _byte_ids() -> list[int]:
    """Return the token of each byte: what is printable stands for itself, the others for what follows from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in printable]
    chars = {value: chr(value) for value in printable} | {value: chr(0x100 + at) for at, value in enumerate(others)}
    ids: dict[str, int] = BYTE_LEVEL.get_vocab()
    return [ids[chars[value]] for value in range(256)]


BYTES = _byte_ids()
WHOLES: dict[int, str | None] = {}  # what streams before have kept


def _padded() -> Tokenizer:
    """Return the byte-level tokenizer of a model with more rows than that has tokens."""
    with tempfile.TemporaryDirectory() as folder:
        path = byte_tokenizer.save(Path(folder))
        (path / "config.json").write_text(json.dumps({"vocab_size": BYTE_LEVEL.get_vocab_size() + 64}))
        return Tokenizer(path)


PADDED = _padded()


def _sentencepiece() -> tokenizers.Tokenizer:
    words = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "▁the",
        "▁end",
        "a",
        "b",
        "é",
        "�",
    ]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


SENTENCEPIECE = _sentencepiece()


@settings(max_examples=300)
@given(places=st.lists(st.integers(0, 299), max_size=120))
def test_ids_without_a_token_are_no_text_wherever_they_stand(places: list[int]) -> None:
    """Rows that a model has and its tokenizer does not name may be drawn: beside bytes that are no text, too."""
    ids = [BYTES[place] if place < 256 else PADDED.vocab_size - 300 + place for place in places]
    detokenizer = PADDED.detokenizer()
    pieces = [detokenizer.push(token_id) for token_id in ids]
    assert len(detokenizer._ids) <= 40
    assert "".join(pieces) + detokenizer.finish() == PADDED.decode_all(ids)
    assert PADDED.detokenizer().whole(ids) == PADDED.decode_all(ids)


@pytest.mark.parametrize("beginning", [[], BYTES[0xE6:0xE7]], ids=["nothing", "an open code point"])
def test_ids_without_a_token_cost_no_window(beginning: list[int]) -> None:
    detokenizer = PADDED.detokenizer()
    for token_id in [*beginning, *[PADDED.vocab_size - 1, 1 << 40] * 500]:
        detokenizer.push(token_id)
    assert len(detokenizer._ids) == len(beginning)
    assert PADDED._wholes is not None
    assert all(token_id < PADDED.vocab_size for token_id in PADDED._wholes)


def pieces_of(tokenizer: tokenizers.Tokenizer, ids: list[int]) -> list[str]:
    byte_ids = {i for text, i in tokenizer.get_vocab().items() if text.startswith("<0x")}
    told = []
    for wholes in (None, {}, WHOLES)[: 1 if tokenizer is SENTENCEPIECE else 3]:
        detokenizer = Detokenizer(tokenizer.decode, silent_ids={0, 1, 2}, byte_ids=byte_ids, wholes=wholes)
        assert detokenizer.whole(ids) == tokenizer.decode(ids)
        told.append([*(detokenizer.push(token_id) for token_id in ids), detokenizer.finish()])
    assert all(each == told[0] for each in told)
    return told[0]


@settings(max_examples=300)
@given(ids=st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() - 1), max_size=80))
def test_byte_level_pieces_are_the_full_text(ids: list[int]) -> None:
    assert "".join(pieces_of(BYTE_LEVEL, ids)) == BYTE_LEVEL.decode(ids)


@settings(max_examples=300)
@given(ids=st.lists(st.one_of(st.integers(0, SENTENCEPIECE.get_vocab_size() - 1), st.integers(259, 265)), max_size=80))
def test_byte_fallback_pieces_are_the_full_text(ids: list[int]) -> None:
    assert "".join(pieces_of(SENTENCEPIECE, ids)) == SENTENCEPIECE.decode(ids)


@given(text=st.text(max_size=60))
def test_no_piece_ends_inside_a_code_point(text: str) -> None:
    pieces = pieces_of(BYTE_LEVEL, BYTE_LEVEL.encode(text).ids)
    assert "".join(pieces) == text
    assert "\ufffd" in text or all("\ufffd" not in piece for piece in pieces)


@pytest.mark.parametrize(
    "ids",
    [
        BYTE_LEVEL.encode("the capital of 東京 is 🦜 " * 100).ids,
        BYTES[0x80:0x81] * 500,
        BYTES[0xE2:0xE3] * 500,
        [*BYTES[0xC0:], *BYTES[:0xC0]] * 3,
        [*BYTES[0x80:0x90], *BYTES[0x41:0x44], *BYTES[0xF0:0xF1], *BYTES[0x9F:0xA0]] * 30,
    ],
    ids=["text", "continuations", "beginnings", "all bytes", "some of each"],
)
def test_a_long_stream_decodes_in_bounded_windows(ids: list[int]) -> None:
    """Garbage too: who may choose tokens may choose such as are no text."""
    seen: list[int] = []

    def decode(ids: list[int]) -> str:
        seen.append(len(ids))
        return str(BYTE_LEVEL.decode(ids))

    kept: tuple[dict[int, str | None] | None, ...] = (None, {})
    for wholes in kept:
        detokenizer = Detokenizer(decode, wholes=wholes)
        out = "".join([detokenizer.push(i) for i in ids])
        assert max(seen) <= 40
        assert out + detokenizer.finish() == BYTE_LEVEL.decode(ids)


@settings(max_examples=200)
@given(values=st.lists(st.one_of(st.integers(0x80, 0xFF), st.integers(0x40, 0x44)), min_size=25, max_size=150))
def test_garbage_of_any_kind_is_the_full_text(values: list[int]) -> None:
    ids = [BYTES[value] for value in values]
    assert "".join(pieces_of(BYTE_LEVEL, ids)) == BYTE_LEVEL.decode(ids)
