"""What messages leave out, what cannot be said, and which wire versions there are. How they travel is the codec's."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

import pytest

from pagewire.core.block_hash import BlockHash
from pagewire.core.cache_events import CacheEvents
from pagewire.core.engine_messages import EngineMessage
from pagewire.core.kv_layout import BlockOrder, KVLayout
from pagewire.core.load import BrownoutLevel, Load
from pagewire.core.messages import (
    COLUMNS_SINCE,
    NONCE_BYTES,
    OLDEST_WIRE_VERSION,
    WIRE_VERSION,
    LinkMessage,
    Submit,
)
from pagewire.core.sampling import EarlyStopping, Grammar, SamplingParams

# What is meant by a field that nobody set, where that is not nothing. The sampling fields are off at 1, but for the
# length of an answer, which has OpenAI's default.
MEANT: dict[type, dict[str, Any]] = {
    Submit: {"prefill": "remote", "deadline_s": 600.0},
    Load: {"brownout": BrownoutLevel.NORMAL},
    KVLayout: {"order": BlockOrder.LAYER_OUTER},
    Grammar: {"field": "grammar"},
    SamplingParams: {
        "n": 1,
        "length_penalty": 1.0,
        "early_stopping": EarlyStopping.FALSE,
        "max_tokens": 16,
        "temperature": 1.0,
        "top_p": 1.0,
        "typical_p": 1.0,
        "repetition_penalty": 1.0,
    },
}


def kinds_within(hint: Any) -> Iterator[type]:
    """Yield the dataclasses that a type is, or is made of, each before what it is made of."""
    if dataclasses.is_dataclass(hint):
        yield typing.cast("type", hint)
        for inner in typing.get_type_hints(hint).values():
            yield from kinds_within(inner)
    for inner in typing.get_args(hint):
        yield from kinds_within(inner)


KINDS = tuple(dict.fromkeys((*kinds_within(LinkMessage), *kinds_within(EngineMessage))))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_is_left_out_of_a_message_is_nothing(kind: type) -> None:
    fields = [field for field in dataclasses.fields(kind) if field.default is not dataclasses.MISSING]
    said = {field.name: field.default for field in fields if field.default not in (None, False, 0, "", b"", ())}
    assert said == MEANT.get(kind, {})


def test_every_kind_of_value_is_among_them() -> None:
    assert {"Hello", "StepDone", "Fingerprint", "Load", "Inflow", "Report", "Branch", "TokenLogprobs"} <= {
        kind.__name__ for kind in KINDS
    }
    assert set(MEANT) <= set(KINDS)


def test_the_wire_is_version_9_and_8_with_those_that_know_no_more() -> None:
    assert (WIRE_VERSION, OLDEST_WIRE_VERSION) == (9, 8)
    assert COLUMNS_SINCE == 9, "peers of version 8 know of no columns"
    assert NONCE_BYTES * 8 == 128


def test_events_say_of_each_block_where_it_is() -> None:
    one, two, three = BlockHash(b"1"), BlockHash(b"2"), BlockHash(b"3")
    events = CacheEvents(sequence=1, hashes=(one, two), depths=(0, 1), tiers=(0, 1), evicted=(three,))
    assert events.num_blocks == 3
    assert CacheEvents(sequence=1, evicted=(one,)).num_blocks == 1
    for depths, tiers in (((0,), (0, 0)), ((0, 1), (0,)), ((0, 1, 2), (0, 0, 0))):
        with pytest.raises(ValueError, match=rf"2 blocks, {len(depths)} places in chains and {len(tiers)} tiers"):
            CacheEvents(sequence=1, hashes=(one, two), depths=depths, tiers=tiers)


@pytest.mark.parametrize(
    ("part", "num_parts", "is_snapshot", "is_last"),
    [(0, 1, True, True), (0, 2, True, False), (1, 2, True, True), (2, 4, True, False), (0, 0, False, False)],
)
def test_a_snapshot_comes_in_parts(part: int, num_parts: int, is_snapshot: bool, is_last: bool) -> None:
    events = CacheEvents(sequence=3, part=part, num_parts=num_parts)
    assert (events.is_snapshot, events.is_last) == (is_snapshot, is_last)


def test_a_queue_lasts_as_long_as_its_tokens_take() -> None:
    assert Load(waiting_tokens=3000, prefill_s_per_token=0.0005).queue_s == pytest.approx(1.5)
    assert Load(waiting_tokens=3000).queue_s == 0, "nothing was measured yet"
