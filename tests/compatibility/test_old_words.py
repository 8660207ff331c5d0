"""What an old peer does with new words, and we with old ones: nothing is guessed, nothing is lost."""

from __future__ import annotations

import json

import pytest
import released_wire
from released_wire import ReleasedCodec

from pagewire.core.errors import PeerMismatch
from pagewire.core.messages import OLDEST_WIRE_VERSION, WIRE_VERSION, Cancel, Challenge, Heartbeat, Role
from pagewire.protos import link_pb2
from pagewire.serving import handshake
from pagewire.serving.codec import LINK_CODEC
from pagewire.serving.handshake import Identity
from pagewire.serving.registration import Registration

NEW_FIELD = b"\xfa\x3e\x03new"  # field 1007, of bytes
NEW_FRAME = b"\x0a\x06" + NEW_FIELD  # a frame whose body is of a kind that nobody here knows

REGISTERED = (  # as the last release wrote it into Redis
    '{"pod_id": "d0", "incarnation": "i", "role": "decode", "address": "h:1", "metrics": "h:2", "fingerprint": '
    '{"model_name": "m", "model_digest": "d", "tokenizer_digest": "t", "kv_fingerprint": "k", "kv_layout": "l", '
    '"block_size": 16, "hash_version": 1, "max_model_len": 512, "arithmetic": ""}, "index_id": 7}'
)


@pytest.mark.parametrize("codec", [LINK_CODEC, ReleasedCodec()], ids=["current", "released"])
def test_new_fields_are_overlooked_and_new_kinds_are_refused(codec: ReleasedCodec) -> None:
    cancel = Cancel(request_id="r", reason="client")
    body = link_pb2.Cancel(request_id="r", reason="client").SerializeToString() + NEW_FIELD
    frame = b"\x5a" + bytes([len(body)]) + body + NEW_FIELD
    assert list(codec.decode(b"\x0a" + bytes([len(frame)]) + frame)) == [cancel]
    heard = codec.decode(LINK_CODEC.encode(cancel) + NEW_FRAME)
    with pytest.raises(PeerMismatch, match="newer wire version"):
        list(heard)


def test_what_an_old_process_says_is_what_it_knew() -> None:
    assert ReleasedCodec().encode(Heartbeat(wants_cache=True)) == LINK_CODEC.encode(Heartbeat(wants_cache=True))


def test_a_registration_of_the_last_release_is_taken_and_so_is_one_of_the_next() -> None:
    old = Registration.from_json(REGISTERED)
    assert json.loads(old.to_json()).keys() >= json.loads(REGISTERED).keys()  # the old one finds what it looks for
    new = json.loads(REGISTERED)
    new["zone"], new["fingerprint"]["colour"] = "eu", ["blue"]
    assert Registration.from_json(json.dumps(new)) == old


def identity(name: str) -> Identity:
    return Identity(peer_id=name, incarnation="1", role=Role.DECODE, secret=b"s")


@pytest.mark.parametrize(
    ("theirs", "spoken"),
    [
        ((WIRE_VERSION, WIRE_VERSION), WIRE_VERSION),
        ((OLDEST_WIRE_VERSION, WIRE_VERSION + 3), WIRE_VERSION),  # a newer one that still speaks ours
        ((1, OLDEST_WIRE_VERSION), OLDEST_WIRE_VERSION),
        ((1, OLDEST_WIRE_VERSION - 1), None),  # a downgrade below what we speak
        ((WIRE_VERSION + 1, WIRE_VERSION + 3), None),
    ],
)
def test_the_highest_common_version_is_spoken_or_none(
    monkeypatch: pytest.MonkeyPatch, theirs: tuple[int, int], spoken: int | None
) -> None:
    ours, challenge = identity("us"), Challenge(nonce=bytes(16))
    with monkeypatch.context() as they:
        they.setattr(handshake, "OLDEST_WIRE_VERSION", theirs[0])
        they.setattr(handshake, "WIRE_VERSION", theirs[1])
        hello = identity("them").hello(challenge, 1, bytes(16))
    if spoken is None:
        with pytest.raises(PeerMismatch, match="wire version"):
            ours.answer(challenge, hello)
        return
    assert ours.answer(challenge, hello).wire_version == spoken


def test_the_last_release_and_we_have_a_version_in_common() -> None:
    assert OLDEST_WIRE_VERSION <= released_wire.versions()["link_version"] <= WIRE_VERSION
