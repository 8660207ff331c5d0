"""JSON that callers write: what is no JSON, no object or no Unicode is refused by name, all else comes out."""

from __future__ import annotations

import json

import pytest

from pagewire.core.errors import InvalidRequest
from pagewire.router.json_text import MAX_FIELDS, MAX_PARTS, MAX_VALUES, read_body, read_object

HALF, WHOLE = "\\ud83d", "\\ud83d\\ude00"  # escapes of half of a pair of surrogates, and of a whole one


def test_pairs_of_surrogates_are_a_character() -> None:
    assert read_body(f'{{"a": "{WHOLE}", "b": [1.5]}}'.encode()) == {"a": "\U0001f600", "b": [1.5]}
    assert read_object("it", f'{{"{WHOLE}": 1}}', field="f") == {"\U0001f600": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "it is not JSON"),
        ("[]", "it is not a JSON object"),
        ('{"a": NaN}', "NaN is no number"),
        ('{"a": ' + "9" * 5000 + "}", "a number in it is too long"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "it is nested too deeply"),
        (f'{{"a": ["{HALF}"]}}', "it is not valid Unicode"),
        (f'{{"{HALF}": 1}}', "it is not valid Unicode"),
    ],
)
def test_a_text_that_is_no_object_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        read_object("it", text, field="f")
    assert refused.value.field == "f"
    with pytest.raises(InvalidRequest):
        read_body(text.encode())


def test_of_a_body_the_field_is_named_whose_text_is_no_unicode() -> None:
    for body, field in ((f'{{"a": "b", "c": "{HALF}"}}', "c"), (f'{{"{HALF}": 1}}', "body")):
        with pytest.raises(InvalidRequest, match="not valid Unicode") as refused:
            read_body(body.encode())
        assert refused.value.field == field
    with pytest.raises(InvalidRequest, match="not UTF-8: invalid start byte at byte 6"):
        read_body(b'{"a":"\xff"}')


def test_a_number_that_is_too_large_is_none() -> None:
    assert read_body(b'{"a": 1e308, "b": -1.5}') == {"a": 1e308, "b": -1.5}
    for number in ("1e999", "-1e999", "1.0e400"):
        with pytest.raises(InvalidRequest, match="is no number"):
            read_body(b'{"a": [%b]}' % number.encode())


PARTS = MAX_PARTS - 2  # beside the object itself and the name of the first field


@pytest.mark.parametrize(
    ("last", "item", "most", "what"),
    [
        ("1", "1", MAX_VALUES, "values"),
        ("[]", "[]", PARTS - 1, "texts, names, lists and objects"),
        ("{}", "{}", PARTS - 1, "texts, names, lists and objects"),
        ('""', '""', PARTS - 1, "texts, names, lists and objects"),
        ('"[{,"', '"\\\\"', PARTS - 1, "texts, names, lists and objects"),  # marks, and a backslash at a text's end
        ('"\\""', '"\\""', PARTS - 1, "texts, names, lists and objects"),
    ],
)
def test_more_values_than_can_be_read_at_once_are_refused_before_they_are(
    last: str, item: str, most: int, what: str
) -> None:
    def text(count: int) -> str:
        return f'{{"a": [{",".join([item] * (count - 1) + [last])}]}}'

    assert len(read_object("it", text(most), field="f")["a"]) == most
    with pytest.raises(InvalidRequest, match=f"it holds [0-9]+ {what}, at most [0-9]+ are taken") as refused:
        read_object("it", text(most + 1), field="f")
    assert refused.value.field == "f"


def test_names_are_counted_wherever_they_are() -> None:
    names = ",".join(f'"{i}":1' for i in range(PARTS - 1))
    assert len(read_body(b'{"a": {%b}}' % names.encode())["a"]) == PARTS - 1
    with pytest.raises(InvalidRequest, match="texts, names, lists and objects") as refused:
        read_body(b'{"a": {%b, "b": 1}}' % names.encode())
    assert refused.value.field == "body"


def test_marks_within_texts_are_no_values() -> None:
    prose = '[{",:}]' * MAX_VALUES
    assert read_body(json.dumps({"a": prose, "b": ["\\"]}).encode())["a"] == prose


def test_a_body_has_no_more_fields_than_anybody_needs() -> None:
    fields = {str(i): None for i in range(MAX_FIELDS)}
    assert read_body(json.dumps(fields).encode()) == fields
    with pytest.raises(InvalidRequest, match=f"has {MAX_FIELDS + 1} fields, at most {MAX_FIELDS}"):
        read_body(json.dumps({**fields, "more": None}).encode())
