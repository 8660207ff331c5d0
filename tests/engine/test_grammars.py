"""Guided outputs: masks are those of the definition, answers follow their grammars, and the state is a fold.

On a byte-level tokenizer, where a token is a byte: what may come next can be said by hand. Tiny random models: without
a grammar they say nothing like JSON.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_runs import assert_at_rest, engine, run_all, run_until_idle, spec
from guesses import Guesses

from pagewire.core.engine_messages import Add
from pagewire.core.errors import InvalidRequest
from pagewire.core.sampling import MAX_GRAMMAR_CHARS, Grammar, GrammarKind, SamplingParams
from pagewire.core.sequence_spec import SequenceSpec
from pagewire.engine import grammars as module
from pagewire.engine.grammars import Grammars, Guided
from pagewire.engine.sequence import Sequence
from pagewire.engine.step_meter import StepMeter

TinyModel = Callable[[str], Path]

V = 259
EOS = {258, 256}
REGEX = "(ab|ac)+d?|x{2,3}"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Ann", "Bo"]},
        "ages": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 99},
            "minItems": 1,
            "maxItems": 3,
        },
    },
    "required": ["name", "ages"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},  # a random model likes whitespace too much to ever end
}
LARK = 'start: ("(" start ")") | NUMBER\nNUMBER: /[0-9]{1,2}/'


def of(kind: GrammarKind, text: str, field: str = "guide") -> Grammar:
    return Grammar(kind=kind, text=text, field=field)


def regex(text: str = REGEX) -> Grammar:
    return of(GrammarKind.REGEX, text)


def schema(value: Any = SCHEMA) -> Grammar:
    return of(GrammarKind.JSON_SCHEMA, json.dumps(value))


@pytest.fixture
def grammars(tiny: TinyModel) -> Grammars:
    return Grammars(tiny("llama") / "tokenizer.json", V, EOS)


def allowed(grammars: Grammars, *asking: Guided) -> list[set[int]]:
    bits, _ = grammars.masks(asking)
    assert bits.shape == (len(asking), -(-V // 32))
    words = bits.tolist()
    return [{token for token in range(V) if words[row][token // 32] >> token % 32 & 1} for row in range(len(asking))]


def guided(name: str, text: str, grammar: Grammar | None = None) -> Guided:
    return Guided(request_id=name, grammar=grammar or regex(), output=tuple(text.encode()))


def may_follow(text: str) -> set[int]:
    """Say by trying what may come next: all texts of the grammar up to a length hold every way to go on."""
    language = {
        "".join(letters)
        for length in range(9)
        for letters in itertools.product("abcdx", repeat=length)
        if re.fullmatch(REGEX, "".join(letters))
    }
    following = {ord(each[len(text)]) for each in language if each.startswith(text) and len(each) > len(text)}
    return following | (EOS if text in language else set())


def test_a_mask_is_what_the_grammar_lets_follow(grammars: Grammars) -> None:
    texts = ["", "a", "ab", "aba", "abac", "acd", "x", "xx", "xxx"]
    found = allowed(grammars, *(guided(text, text) for text in texts))
    assert found == [may_follow(text) for text in texts]


def test_an_object_has_no_members_that_its_schema_does_not_name(grammars: Grammars) -> None:
    named = {"type": "object", "properties": {"a": {"enum": [1]}}, "x-guidance": {"whitespace_flexible": False}}
    (follow,) = allowed(grammars, guided("a", '{"a":1', schema(named)))
    assert follow == {ord("}")}
    (follow,) = allowed(grammars, guided("b", '{"a":1', schema({**named, "additionalProperties": True})))
    assert follow == {ord("}"), ord(",")}


def test_a_mask_is_a_fold_however_the_output_came(grammars: Grammars) -> None:
    """Token by token, at once, again, and back behind another output of the same name: always the same."""
    for end in range(7):
        assert allowed(grammars, guided("a", "abacab"[:end])) == [may_follow("abacab"[:end])]
    for text in ("abacab", "xx", "abacab", "", "acd"):
        assert allowed(grammars, guided("a", text), guided("b", "a")) == [may_follow(text), may_follow("a")]
        assert allowed(grammars, guided("a", text)) == [may_follow(text)], "asked again"


def test_what_is_forgotten_is_made_again(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_MATCHED", 2)
    monkeypatch.setattr(module, "MAX_COMPILED", 1)
    for end in range(1, 4):
        for name in "abc":
            assert allowed(grammars, guided(name, "acab"[:end])) == [may_follow("acab"[:end])]
            allowed(grammars, guided(f"{name}{end}", "7", regex("[0-9]+")))


def test_what_is_remembered_is_bounded(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many grammars come: the ones used last are there, compiled and matched, and no others."""
    assert max(module.MAX_COMPILED, module.MAX_MATCHED) <= 256
    monkeypatch.setattr(module, "MAX_COMPILED", 3)
    monkeypatch.setattr(module, "MAX_MATCHED", 2)
    many = [regex(f"{number}+") for number in range(8)]
    for each in many:
        grammars.compile(each)
        assert len(grammars._compiled) <= 3
    assert [grammars.knows(each) for each in many] == [False] * 5 + [True] * 3
    grammars.compile(many[5])
    grammars.compile(many[0])
    assert [grammars.knows(each) for each in many] == [True] + [False] * 4 + [True, False, True], "by their last use"
    for number in range(8):
        allowed(grammars, guided(f"r{number}", "", many[number]))
        assert len(grammars._matches) <= 2
        assert len(grammars._compiled) <= 3
    assert [*grammars._matches] == ["r6", "r7"]


def test_an_output_that_does_not_follow_its_grammar_is_refused(grammars: Grammars) -> None:
    with pytest.raises(InvalidRequest) as refused:
        grammars.masks([guided("a", "q")])
    assert refused.value.field == "guide"
    assert allowed(grammars, guided("a", "a")) == [may_follow("a")], "and leaves nothing behind"


@pytest.mark.parametrize(
    "bad",
    [
        regex("(("),
        of(GrammarKind.LARK, "start: nothing"),
        of(GrammarKind.LARK, "this is no grammar"),
        of(GrammarKind.JSON_SCHEMA, "{"),
        of(GrammarKind.JSON_SCHEMA, '{"type": "thing"}'),
        of(GrammarKind.JSON_SCHEMA, "[1]"),
        of(GrammarKind.LARK, "start: " + "(" * 5000 + '"a"' + ")" * 5000),
        of(GrammarKind.JSON_SCHEMA, '{"items":' * 5000 + "{}" + "}" * 5000),
    ],
    ids=str,
)
def test_a_bad_grammar_is_refused_by_name(grammars: Grammars, bad: Grammar) -> None:
    with pytest.raises(InvalidRequest) as refused:
        grammars.compile(bad)
    assert refused.value.field == "guide"
    assert len(refused.value.message) < 400


@pytest.mark.parametrize("text", ["(a{1000}){1000}", "(a?){5000}a{5000}"])
def test_what_takes_too_much_is_refused_by_name_when_that_shows(grammars: Grammars, text: str) -> None:
    def write() -> None:
        for count in range(100):
            grammars.masks([guided("a", "a" * count, regex(text))])

    with pytest.raises(InvalidRequest, match="too many expressions") as refused:
        write()
    assert refused.value.field == "guide"


@pytest.mark.parametrize(
    "large",
    [
        regex("[a-zA-Z ,.]{200,2000}"),
        regex("([a-z]{1,100} ){1,1000}"),
        of(GrammarKind.LARK, "start: " + " | ".join(f'"{number * 7919:040d}"' for number in range(1024))),
        schema({"type": "object", "properties": {f"p{i}": {"type": "string", "maxLength": 500} for i in range(200)}}),
        schema({"enum": [f"{number * 7919:030d}" for number in range(2000)]}),
    ],
    ids=lambda grammar: grammar.kind.value,
)
def test_the_bounds_leave_room_for_large_grammars(grammars: Grammars, large: Grammar) -> None:
    assert allowed(grammars, guided("a", "", large))[0]


@pytest.mark.parametrize("rest", [' | "y"', ' "y"', '? "y"', ""], ids=["or", "and", "perhaps", "alone"])
def test_rules_that_lead_to_one_another_by_the_thousand_end_no_process(grammars: Grammars, rest: str) -> None:
    """As many as a text has room for: on a usual stack 3,000 are a segmentation fault, also where one was forgotten."""
    names = ["".join(letters) for letters in itertools.product("abcdefghijklmnop", repeat=3)]
    rules = [f"{this}:{then}{rest}\n" for this, then in itertools.pairwise(names)]
    text = f"start:{names[0]}\n{''.join(rules)}{names[-1]}:" + '"x"\n'
    assert len(rules) == 4095
    assert len(text) <= MAX_GRAMMAR_CHARS
    assert ord("x") in allowed(grammars, guided("a", "", of(GrammarKind.LARK, text)))[0]


def test_a_model_without_a_tokenizer_or_an_end_refuses(tmp_path: Path, tiny: TinyModel) -> None:
    for each in (Grammars(tmp_path / "tokenizer.json", V, EOS), Grammars(tiny("llama") / "tokenizer.json", V, set())):
        with pytest.raises(InvalidRequest, match="end-of-sequence"):
            each.compile(regex())


def test_a_grammar_that_many_have_asked_for_is_as_good_as_new(grammars: Grammars) -> None:
    """Copies share a lexer, and what all outputs made it build counts: it is made anew before anybody is refused."""
    wide = regex("(.|\n)*[a-m](.|\n){7}[n-z](.|\n){9}")
    draw = random.Random(1)
    output, compilations = "", {id(grammars.compile(wide)): grammars.compile(wide)}
    for number in range(60):
        output = ""
        for _ in range(200):
            (may,) = allowed(grammars, guided(f"r{number}", output, wide))
            output += chr(draw.choice(sorted(may & set(range(97, 123)))))
        compilations.setdefault(id(grammars.compile(wide)), grammars.compile(wide))
    assert len(compilations) > 1, "its lexer was not worn: the test shows nothing"
    assert allowed(grammars, guided("again", output, wide)) == allowed(grammars, guided("r59", output, wide))


def test_masks_behind_drafted_tokens_are_those_behind_outputs(grammars: Grammars) -> None:
    """Up to one that may not come, behind which whatever is drawn is thrown away; nothing is consumed by it."""
    for text, drafted in (("", "abac"), ("ab", "d"), ("a", "bqab"), ("", "xxx"), ("abd", "b")):
        one, others = guided("a", text), guided("b", "ab")
        bits, are_complete = grammars.masks([replace(one, drafted=tuple(drafted.encode())), others])
        right: list[tuple[list[int], bool]] = []
        for count in range(len(drafted) + 1):
            try:
                (row,), (is_complete,) = grammars.masks([guided(f"{count}", text + drafted[:count])])
                right.append((row.tolist(), is_complete))
            except InvalidRequest:
                right.append(([-1] * len(bits[0]), False))
        (row,), (is_complete,) = grammars.masks([others])
        right.append((row.tolist(), is_complete))
        assert list(zip(bits.tolist(), are_complete, strict=True)) == right
        assert grammars.masks([one])[0].tolist() == [right[0][0]]


def test_what_is_forced_is_what_alone_may_come(grammars: Grammars) -> None:
    def forced(name: str, text: str, grammar: Grammar) -> tuple[int, ...]:
        return grammars.forced(name, grammar, tuple(text.encode()))

    one = regex("abc[de]fg")
    assert forced("a", "", one) == tuple(b"abc")
    assert forced("a", "abc", one) == ()
    assert forced("a", "abce", one) == tuple(b"fg")
    assert allowed(grammars, guided("a", "abcef", one)) == [set(b"g")]
    assert forced("a", "abcefg", one) == ()
    assert forced("b", "q", regex("abc")) == (), "which its mask says by name"


def test_drafts_change_no_guided_answer(tiny: TinyModel) -> None:
    """What is forced, looked up, or made up and may not come."""
    right = run_all(engine(tiny("llama")).loop, batch()).tokens
    drafting = engine(tiny("llama"), speculative_tokens=6)
    assert drafting.scheduler.speculation is not None
    drafting.scheduler.speculation._meter = meter = StepMeter()  # for which what is drafted costs nothing
    for count in range(1, 9):
        meter.observe(0, count, 1.0)
    assert run_all(drafting.loop, batch()).tokens == right
    load = drafting.loop.load()
    assert load.draft_tokens_accepted > 20

    def said_by(sequence: Sequence, place: int) -> int:
        said = right[sequence.request_id]
        return said[min(place, len(said) - 1)]

    for most in (2, 9):
        guesses = Guesses(most, said_by, wrong=1)
        drafting.scheduler.speculation = guesses
        assert run_all(drafting.loop, batch()).tokens == right
        assert 0 < guesses.num_accepted < guesses.num_drafted
    assert_at_rest(drafting.loop)


def asked(grammar: Grammar | None, seed: int, **changes: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 80, "temperature": 1.0, "seed": seed, "grammar": grammar, **changes})


def batch() -> list[SequenceSpec]:
    """Return guided and free sequences."""
    sampled = [
        asked(schema(), 1),
        asked(None, 2),
        asked(regex(), 3),
        asked(of(GrammarKind.LARK, LARK), 4),
        asked(regex("[a-z]{3,}"), 5, min_tokens=12, max_tokens=20),
        asked(regex("yes|no"), 6, min_tokens=40),
        asked(schema(), 7, temperature=0.0, repetition_penalty=1.1, logprobs=2),
        asked(schema({"type": "object"}), 8, max_tokens=10),
    ]
    return [spec(str(i), [i + 1] * (5 + 3 * i), one) for i, one in enumerate(sampled)]


def text_of(tokens: list[int]) -> str:
    assert tokens[-1] in EOS
    return bytes(tokens[:-1]).decode()


def test_answers_follow_their_grammars_in_a_mixed_batch_as_alone(tiny: TinyModel) -> None:
    built = engine(tiny("llama"), chunk_size=16)
    heard = run_all(built.loop, batch())
    tokens = heard.tokens
    assert {name: end.error for name, end in heard.ends.items() if end.error is not None} == {}
    for name in "06":
        value = json.loads(text_of(tokens[name]))
        assert value["name"] in ("Ann", "Bo")
        assert all(0 <= age <= 99 for age in value["ages"])
        assert set(value) == {"name", "ages"}
        assert heard.reasons[name] == "stop"
    assert re.fullmatch(REGEX, text_of(tokens["2"]))
    number = text_of(tokens["3"])
    assert re.fullmatch(r"\(*\d{1,2}\)*", number)
    assert number.count("(") == number.count(")")
    assert re.fullmatch("[a-z]{12,}", bytes(token for token in tokens["4"] if token not in EOS).decode())
    assert text_of(tokens["5"]) in ("yes", "no"), "a grammar that is complete ends before min_tokens"
    assert bytes(tokens["7"]).lstrip()[:1] == b"{"
    assert_at_rest(built.loop)
    alone = engine(tiny("llama"))
    for one in batch():
        assert run_all(alone.loop, [one]).tokens[one.request_id] == tokens[one.request_id]


@pytest.mark.parametrize("known", [1, 7])
def test_a_guided_sequence_goes_on_on_any_engine(tiny: TinyModel, known: int) -> None:
    whole = run_all(engine(tiny("llama")).loop, batch()).tokens
    other = engine(tiny("llama"))
    for one in batch():
        answer = whole[one.request_id]
        if len(answer) <= known:
            continue
        other.loop.add(Add(spec=spec(one.request_id, one.tokens, one.sampling, output=tuple(answer[:known]))))
    said: dict[str, list[int]] = {}
    while (done := other.loop.step()) is not None:
        for record in done.records:
            said.setdefault(record.request_id, []).extend(record.tokens)
    assert {name: whole[name][:known] + rest for name, rest in said.items()} == {name: whole[name] for name in said}
    assert len(said) >= 5


def test_what_is_no_grammar_ends_its_own_sequence_alone(tiny: TinyModel) -> None:
    built = engine(tiny("llama"))
    heard = run_all(built.loop, [spec("bad", [1], asked(regex("(("), 1)), spec("good", [2], asked(regex("no"), 1))])
    error = heard.ends["bad"].error
    assert error is not None
    assert (error.cause, error.field) == ("invalid_request", "guide")
    assert text_of(heard.tokens["good"]) == "no"
    assert run_until_idle(built.loop).steps == 0


def test_a_tokenizer_may_name_tokens_of_which_the_model_has_no_row(tiny: TinyModel) -> None:
    rows = 250  # of 259: the special ones come last
    narrow, all_rows = (
        Grammars(tiny("llama") / "tokenizer.json", rows, {10, 258}),
        Grammars(tiny("llama") / "tokenizer.json", V, {10}),
    )
    for output in ("", "ab", "xx"):
        bits, _ = narrow.masks([guided("a", output)])
        assert bits.shape == (1, -(-rows // 32))
        words = bits[0].tolist()
        assert {token for token in range(rows) if words[token // 32] >> token % 32 & 1} == {
            token for token in allowed(all_rows, guided("a", output))[0] if token < rows
        }


def test_masks_cover_a_vocabulary_that_is_wider_than_the_tokenizer(tiny: TinyModel) -> None:
    wide = Grammars(tiny("llama") / "tokenizer.json", 300, EOS)
    bits, _ = wide.masks([guided("a", "a")])
    found = torch.tensor([[word >> bit & 1 for word in row for bit in range(32)] for row in bits.tolist()])
    assert found.shape == (1, 320)
    assert set(found[0].nonzero()[:, 0].tolist()) == may_follow("a")
