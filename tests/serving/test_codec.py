"""Every message survives the wire, and every wire field has its message field."""

from __future__ import annotations

import dataclasses
import typing

import pytest
from google.protobuf.descriptor import Descriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.core import messages
from pagewire.core.block_hash import BlockHash
from pagewire.core.cache_events import CacheEvents
from pagewire.core.engine_messages import EngineMessage, StepDone
from pagewire.core.errors import PeerMismatch
from pagewire.core.kv_layout import BLOCK_SIZES, BlockOrder, KVLayout
from pagewire.core.messages import COLUMNS_SINCE, Stop, Tokens
from pagewire.core.sampling import FinishReason
from pagewire.core.token_record import TokenLogprobs, TokenRecord
from pagewire.protos import common_pb2, engine_pb2, link_pb2
from pagewire.serving.codec import ENGINE_CODEC, LINK_CODEC, MAX_GREETING_BYTES, Codec, link_codec

U32 = st.integers(0, 2**32 - 1)
FLOAT = st.floats(allow_nan=False)
st.register_type_strategy(int, U32)
st.register_type_strategy(float, FLOAT)
st.register_type_strategy(BlockHash, st.binary(min_size=16, max_size=16).map(BlockHash))
BLOCK = st.tuples(st.binary(min_size=16, max_size=16).map(BlockHash), U32, U32)
st.register_type_strategy(
    CacheEvents,
    st.builds(
        lambda blocks, evicted, **others: CacheEvents(
            hashes=tuple(each[0] for each in blocks),
            depths=tuple(each[1] for each in blocks),
            tiers=tuple(each[2] for each in blocks),
            evicted=tuple(each[0] for each in evicted),
            **others,
        ),
        st.lists(BLOCK),
        st.lists(BLOCK),
        sequence=U32,
        part=U32,
        num_parts=U32,
    ),
)
st.register_type_strategy(
    KVLayout,
    st.builds(
        KVLayout,
        num_layers=st.integers(1, 99),
        num_kv_heads=st.integers(1, 99),
        head_dim=st.integers(1, 999),
        block_size=st.sampled_from(BLOCK_SIZES),
        dtype=st.sampled_from(["float32", "bfloat16"]),
        order=st.sampled_from(BlockOrder),
    ),
)

COLUMNS = common_pb2.TokenColumns.DESCRIPTOR
SCORE = TokenLogprobs(token=1, logprob=-1.0, rank=2)


def unordered(message: typing.Any) -> typing.Any:
    """Return a message whose records stand in some order of theirs: a step's tokens have none among each other."""
    if not isinstance(message, Tokens | StepDone):
        return message
    return dataclasses.replace(message, records=tuple(sorted(message.records, key=repr)))


LINK_KINDS = typing.get_args(messages.LinkMessage)
ENGINE_KINDS = typing.get_args(EngineMessage)


@pytest.mark.parametrize("kind", LINK_KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_link_messages_survive_the_wire(kind: type[messages.LinkMessage], data: st.DataObject) -> None:
    message = data.draw(st.from_type(kind))
    for codec in (LINK_CODEC, link_codec(COLUMNS_SINCE - 1)):
        assert unordered(LINK_CODEC.decode_one(codec.encode(message))) == unordered(message)


@pytest.mark.parametrize("kind", ENGINE_KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_engine_messages_survive_the_wire(kind: type[EngineMessage], data: st.DataObject) -> None:
    message = data.draw(st.from_type(kind))
    assert unordered(ENGINE_CODEC.decode(ENGINE_CODEC.encode(message))) == unordered(message)


PLAIN = tuple(
    TokenRecord(request_id=name, index=0, position=place, tokens=(7 + place,)) for place, name in enumerate("abc")
)


@pytest.mark.parametrize(
    "changed",
    [
        {"index": 1},
        {"tokens": ()},
        {"tokens": (1, 2)},
        {"finish_reason": FinishReason.STOP},
        {"logprobs": (SCORE,)},
        {"prompt_logprobs": (SCORE,)},
        {"cumulative_logprob": 0.0},
        {"score": 0.0},
    ],
    ids=lambda each: next(iter(each)),
)
def test_plain_tokens_go_as_columns_and_no_others(changed: dict[str, typing.Any]) -> None:
    other = dataclasses.replace(PLAIN[1], **changed)
    frame = link_pb2.Frames.FromString(LINK_CODEC.encode(Tokens(records=(PLAIN[0], other, PLAIN[2])))).frames[0].tokens
    assert (list(frame.plain.request_ids), list(frame.plain.positions), list(frame.plain.tokens)) == (
        ["a", "c"], [0, 2], [7, 9],
    )  # fmt: skip
    (heard,) = LINK_CODEC.decode(LINK_CODEC.encode(Tokens(records=(PLAIN[0], other, PLAIN[2]))))
    assert heard == Tokens(records=(PLAIN[0], PLAIN[2], other))


def test_who_knows_no_columns_is_told_none() -> None:
    said = link_codec(COLUMNS_SINCE - 1).encode(Tokens(records=PLAIN))
    assert not link_pb2.Frames.FromString(said).frames[0].tokens.HasField("plain")
    assert LINK_CODEC.decode_one(said) == Tokens(records=PLAIN)
    assert link_codec(COLUMNS_SINCE) is LINK_CODEC


def test_engines_say_columns_too() -> None:
    frame = engine_pb2.Frame.FromString(ENGINE_CODEC.encode(StepDone(records=PLAIN)))
    assert list(frame.step_done.plain.request_ids) == ["a", "b", "c"]


def test_columns_of_unequal_lengths_are_no_frame() -> None:
    frame = link_pb2.Frame(tokens={"plain": {"request_ids": ["a", "b"], "positions": [1, 2], "tokens": [3]}})
    with pytest.raises(PeerMismatch):
        LINK_CODEC.decode_one(link_pb2.Frames(frames=[frame]).SerializeToString())


@pytest.mark.parametrize(("frame", "kinds"), [(link_pb2.Frame, LINK_KINDS), (engine_pb2.Frame, ENGINE_KINDS)])
def test_the_contract_and_the_messages_have_the_same_fields(frame: typing.Any, kinds: tuple[type, ...]) -> None:
    by_name = {kind.__name__: kind for kind in kinds}
    bodies = {field.message_type.name: field.message_type for field in frame.DESCRIPTOR.fields}
    assert set(bodies) == set(by_name)
    for name, descriptor in bodies.items():
        _same_fields(descriptor, by_name[name])


def _same_fields(descriptor: Descriptor, kind: type) -> None:
    hints = typing.get_type_hints(kind)
    fields = [field for field in descriptor.fields if field.message_type is None or field.message_type is not COLUMNS]
    assert {field.name for field in fields} == set(hints), kind.__name__
    for field in fields:
        inner = [arm for arm in (hints[field.name], *typing.get_args(hints[field.name])) if isinstance(arm, type)]
        for arm in inner:
            if field.message_type is not None and hasattr(arm, "__dataclass_fields__"):
                _same_fields(field.message_type, arm)


@pytest.mark.parametrize("data", [b"", b"\xff\xff\xff", b"\x0a\xff\x01"])
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    why = "does not parse" if data else "a batch without frames"
    with pytest.raises(PeerMismatch, match=why):
        LINK_CODEC.decode_one(data)
    with pytest.raises(PeerMismatch, match=why):
        list(LINK_CODEC.decode(data))
    with pytest.raises(PeerMismatch, match="does not parse" if data else "empty frame"):
        ENGINE_CODEC.decode(data)


def test_a_frame_with_rubbish_after_it_is_none() -> None:
    with pytest.raises(PeerMismatch, match="does not parse"):
        LINK_CODEC.decode_one(LINK_CODEC.encode(Stop(request_id="r", index=1)) + b"\xff")


Name = typing.NewType("Name", str)


@pytest.mark.parametrize("hint", [Name | None, str | None, typing.Optional[str]])  # noqa: UP045
def test_what_may_be_missing_is_none_however_it_is_said(hint: typing.Any) -> None:
    kind = dataclasses.make_dataclass("Stop", [("request_id", hint, None)])
    codec: Codec[typing.Any] = Codec(link_pb2.Frame, (kind,))
    for request_id in (None, "r"):
        assert codec.decode(codec.encode(kind(request_id))).request_id == request_id


@pytest.mark.parametrize("hint", [complex, dict[str, int], typing.Literal["r"], complex | None])
def test_what_has_no_wire_form_is_named_before_anything_is_sent(hint: typing.Any) -> None:
    kind = dataclasses.make_dataclass("Stop", [("request_id", hint)])
    with pytest.raises(TypeError, match="no wire form for request_id"):
        Codec(link_pb2.Frame, (kind,))


def test_a_value_outside_its_vocabulary_is_refused() -> None:
    batch = link_pb2.Frames(frames=[link_pb2.Frame(hello=link_pb2.Hello(role="emperor"))])
    with pytest.raises(PeerMismatch, match="emperor"):
        LINK_CODEC.decode_one(batch.SerializeToString())
    batch = link_pb2.Frames(frames=[link_pb2.Frame(submit=link_pb2.Submit())])
    with pytest.raises(PeerMismatch, match="spec"):
        LINK_CODEC.decode_one(batch.SerializeToString())


def test_blocks_of_which_it_is_not_said_where_they_are_are_refused() -> None:
    events = link_pb2.CacheEvents(sequence=1, hashes=[bytes(16)] * 2, depths=[0], tiers=[0, 0])
    batch = link_pb2.Frames(frames=[link_pb2.Frame(cache_events=events)])
    with pytest.raises(PeerMismatch, match="2 blocks, 1 places"):
        LINK_CODEC.decode_one(batch.SerializeToString())


def test_batches_joined_are_a_batch() -> None:
    messages = [Stop(request_id=f"r{number}", index=number) for number in range(5)]
    assert list(LINK_CODEC.decode(b"".join(map(LINK_CODEC.encode, messages)))) == messages
    with pytest.raises(PeerMismatch, match="2 frames"):
        LINK_CODEC.decode_one(b"".join(map(LINK_CODEC.encode, messages[:2])))


def test_what_precedes_a_wrong_frame_is_heard() -> None:
    stop, nothing = Stop(request_id="r", index=1), link_pb2.Frames(frames=[link_pb2.Frame()])
    heard = LINK_CODEC.decode(LINK_CODEC.encode(stop) + nothing.SerializeToString())
    assert next(heard) == stop
    with pytest.raises(PeerMismatch, match="empty frame"):
        next(heard)


@pytest.mark.parametrize("length", [MAX_GREETING_BYTES, MAX_GREETING_BYTES + 1, 1 << 24])
def test_a_greeting_that_is_too_long_is_refused_before_it_is_read(length: int) -> None:
    """Whoever sends one has proved nothing, and empty messages grow a hundredfold when they are parsed."""
    data = b"\x0a\x00" * (length // 2) + b"\x0a\x00"[: length % 2]
    is_read = length <= MAX_GREETING_BYTES
    with pytest.raises(
        PeerMismatch, match="an empty frame" if is_read else f"a greeting of {length} bytes, where 65536 may be"
    ):
        LINK_CODEC.decode_one(data)
