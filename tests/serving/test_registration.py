"""What a pod says of itself, in its stored form: the borders of what is taken for one. Hostile forms: test_registry."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from index_rig import pod

from pagewire.core.index_member import MAX_INDEX_ID
from pagewire.serving.registration import MAX_REGISTRATION_BYTES, Registration

LARGEST = 2_147_483_647  # that a message's field holds


def parsed(**changes: Any) -> Registration:
    """Return what becomes of a pod's stored form with these members of it, or of its fingerprint, changed."""
    stands = json.loads(pod().to_json())
    for name, value in changes.items():
        (stands if name in stands else stands["fingerprint"])[name] = value
    return Registration.from_json(json.dumps(stands))


def test_it_may_be_so_long_and_no_longer() -> None:
    text = pod().to_json()
    assert Registration.from_json(text + " " * (MAX_REGISTRATION_BYTES - len(text))) == pod()
    with pytest.raises(ValueError, match=f"a registration of {MAX_REGISTRATION_BYTES + 1} bytes"):
        Registration.from_json(text + " " * (MAX_REGISTRATION_BYTES + 1 - len(text)))


@pytest.mark.parametrize("name", ["block_size", "hash_version", "max_model_len"])
def test_numbers_are_those_that_a_message_holds(name: str) -> None:
    for right in (0, 1, LARGEST):
        assert getattr(parsed(**{name: right}).fingerprint, name) == right
    for wrong in (-1, LARGEST + 1, True, 1.0, "1", None):
        with pytest.raises(ValueError, match=f"not a registration: {name} is"):
            parsed(**{name: wrong})


def test_an_index_id_is_one_of_the_index_or_none() -> None:
    assert [parsed(index_id=number).index_id for number in (0, 1, MAX_INDEX_ID)] == [0, 1, MAX_INDEX_ID]
    for wrong in (-1, MAX_INDEX_ID + 1, LARGEST):
        with pytest.raises(ValueError, match="not a registration: index_id is"):
            parsed(index_id=wrong)
    stands = json.loads(pod().to_json())
    del stands["index_id"]
    assert Registration.from_json(json.dumps(stands)) == dataclasses.replace(pod(), index_id=0), "it is in no index"


@pytest.mark.parametrize("text", ["", "a b", "é", "}{"])
def test_a_text_is_what_a_log_can_show(text: str) -> None:
    assert parsed(address=text, model_name=text).address == text
    for name in ("address", "model_name"):
        with pytest.raises(ValueError, match=f"not a registration: {name} is"):
            parsed(**{name: text + "\n"})


def test_a_member_is_one_incarnation_of_a_pod() -> None:
    assert pod("d0", incarnation="7").member == "d0@7"
