"""Greetings: what goes in comes out, what is not ours is refused, and two pods prove themselves to each other."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.core.errors import PeerMismatch, Unauthenticated
from pagewire.kvtransfer import greeting_wire
from pagewire.kvtransfer.greeting import Greeter
from pagewire.kvtransfer.greeting_wire import Hello, Welcome
from pagewire.kvtransfer.wire import MAGIC, WIRE_VERSION, Kind, MalformedMessage


@given(message=st.binary(max_size=200), kind=st.sampled_from(list(Kind)))
def test_anything_is_either_understood_or_malformed(message: bytes, kind: Kind) -> None:
    decoders = {
        Kind.HELLO: greeting_wire.decode_hello,
        Kind.WELCOME: greeting_wire.decode_welcome,
        Kind.CHALLENGE: greeting_wire.decode_challenge,
    }
    for own, decode in decoders.items():
        data = MAGIC + bytes([WIRE_VERSION, kind]) + message
        if not kind is own is Kind.CHALLENGE or len(message) != greeting_wire.NONCE_BYTES:
            with pytest.raises(MalformedMessage):
                decode(data)
        with pytest.raises(MalformedMessage):
            decode(message)


def a_hello(peer_id: str, window: int = 1, carrier: str = "grpc", card: bytes = b"") -> Hello:
    return Hello(
        peer_id=peer_id, block_bytes=5, window_bytes=window, carrier=carrier, order="layer_outer", card=card,
        nonce=b"n" * 16, proof=b"p" * 32,
    )  # fmt: skip


@given(
    peer_id=st.text(min_size=1, max_size=60),
    window=st.integers(0, 2**64 - 1),
    carrier=st.text(max_size=60),
    card=st.binary(max_size=300),
)
def test_greetings(peer_id: str, window: int, carrier: str, card: bytes) -> None:
    hello = a_hello(peer_id, window, carrier, card)
    assert greeting_wire.decode_hello(greeting_wire.encode_hello(hello)) == hello
    welcome = Welcome(order=carrier, num_groups=1 + window % 2**31, card=card, proof=b"p" * 32)
    assert greeting_wire.decode_welcome(greeting_wire.encode_welcome(welcome)) == welcome
    for data in (greeting_wire.encode_hello(hello), greeting_wire.encode_welcome(welcome)):
        decode = greeting_wire.decode_hello if data[5] == Kind.HELLO else greeting_wire.decode_welcome
        for spoilt in (data[:-1], data + b"x"):
            with pytest.raises(MalformedMessage):
                decode(spoilt)


def test_greetings_are_frozen() -> None:
    """Bytes of version 4, once and for all: another layout needs another version."""
    assert greeting_wire.encode_challenge(b"n" * 16).hex() == "50574b560401" + "6e" * 16
    assert greeting_wire.encode_hello(a_hello("D", 2, card=b"c")).hex() == (
        "50574b560402" "0500000000000000" "0200000000000000"
        "010044" "040067727063" "0b006c617965725f6f75746572" "010063" "1000" + "6e" * 16 + "2000" + "70" * 32
    )  # fmt: skip
    welcome = Welcome(order="o", num_groups=3, card=b"c", proof=b"p" * 32)
    assert greeting_wire.encode_welcome(welcome).hex() == (
        "50574b560403" "03000000" "01006f" "010063" "2000" + "70" * 32
    )  # fmt: skip


def test_names_and_cards_are_bounded() -> None:
    with pytest.raises(ValueError, match="empty peer id"):
        greeting_wire.encode_hello(a_hello(""))
    for hello in (a_hello("x" * 257), a_hello("x", carrier="y" * 257), a_hello("x", card=bytes(16385))):
        with pytest.raises(ValueError, match="are the most"):
            greeting_wire.encode_hello(hello)


def test_names_and_cards_may_be_as_long_as_their_bounds() -> None:
    hello = a_hello("x" * 256, carrier="y" * 256, card=bytes(16384))
    assert greeting_wire.decode_hello(greeting_wire.encode_hello(hello)) == hello
    welcome = Welcome(order="z" * 256, num_groups=1, card=bytes(16384), proof=b"p" * 32)
    assert greeting_wire.decode_welcome(greeting_wire.encode_welcome(welcome)) == welcome


def test_a_challenge_is_a_nonce_of_its_length() -> None:
    assert greeting_wire.decode_challenge(greeting_wire.encode_challenge(b"n" * 16)) == b"n" * 16
    for length in (0, 15, 17):
        with pytest.raises(MalformedMessage):
            greeting_wire.decode_challenge(greeting_wire.encode_challenge(b"n" * length))


def lengths_before(*parts: bytes) -> bytes:
    """Texts as the greetings carry them."""
    return b"".join(len(part).to_bytes(2, "little") + part for part in parts)


PROPER_HELLO = (b"D", b"grpc", b"o", b"card", b"n" * 16, b"p" * 32)
PROPER_WELCOME = (b"o", b"card", b"p" * 32)


@pytest.mark.parametrize(
    ("at", "part"),
    [
        (0, b""), (0, b"x" * 257), (0, b"\xff"), (1, b"x" * 257), (1, b"\xff"), (2, b"x" * 257), (2, b"\xff"),
        (3, bytes(16385)), (4, b"n" * 15), (4, b"n" * 17), (4, b""), (5, b"p" * 31), (5, b"p" * 33), (5, b""),
    ],
)  # fmt: skip
def test_a_part_of_a_hello_that_nobody_of_ours_sends_is_malformed(at: int, part: bytes) -> None:
    start = MAGIC + bytes([WIRE_VERSION, Kind.HELLO]) + bytes(16)
    assert greeting_wire.decode_hello(start + lengths_before(*PROPER_HELLO)).peer_id == "D"
    parts = list(PROPER_HELLO)
    parts[at] = part
    with pytest.raises(MalformedMessage):
        greeting_wire.decode_hello(start + lengths_before(*parts))


@pytest.mark.parametrize(
    ("num_groups", "at", "part"),
    [
        (0, 0, b"o"), (1, 0, b"x" * 257), (1, 0, b"\xff"), (1, 1, bytes(16385)),
        (1, 2, b""), (1, 2, b"p" * 31), (1, 2, b"p" * 33),
    ],
)  # fmt: skip
def test_a_part_of_a_welcome_that_nobody_of_ours_sends_is_malformed(num_groups: int, at: int, part: bytes) -> None:
    start = MAGIC + bytes([WIRE_VERSION, Kind.WELCOME])
    proper = start + (1).to_bytes(4, "little") + lengths_before(*PROPER_WELCOME)
    assert greeting_wire.decode_welcome(proper).num_groups == 1
    parts = list(PROPER_WELCOME)
    parts[at] = part
    with pytest.raises(MalformedMessage):
        greeting_wire.decode_welcome(start + num_groups.to_bytes(4, "little") + lengths_before(*parts))


# ------------------------------------------------------------------------------------------------------- proofs


def greeter(peer_id: str, *, secret: bytes = b"s", block_bytes: int = 8, order: str = "layer_outer") -> Greeter:
    return Greeter(peer_id=peer_id, block_bytes=block_bytes, order=order, secret=secret)


def test_two_pods_prove_themselves_to_each_other() -> None:
    hello = greeter("D").hello("P", b"challenge", b"nonce", 100, carrier="shm", card=b"card")
    greeter("P").admit(hello, b"challenge")
    welcome = greeter("P").welcome(hello, b"challenge", b"answer")
    greeter("D").check("P", hello, b"challenge", welcome)
    for source_id, challenge, said in (
        ("P2", b"challenge", welcome),
        ("P", b"other", welcome),
        ("P", b"challenge", dataclasses.replace(welcome, proof=hello.proof)),
        ("P", b"challenge", dataclasses.replace(welcome, card=b"another")),
        ("P", b"challenge", dataclasses.replace(welcome, order="another")),
    ):
        with pytest.raises(Unauthenticated):
            greeter("D").check(source_id, hello, challenge, said)


def test_proofs_are_frozen() -> None:
    """What is proven, and how, as of version 4: pods that differ in it could not greet one another."""
    hello = greeter("D").hello("P", b"challenge", b"n" * 16, 100, carrier="shm", card=b"card")
    said = b"".join((
        bytes.fromhex("50574b560402" "0800000000000000" "6400000000000000"),
        lengths_before(b"D", b"shm", b"layer_outer", b"card", b"n" * 16, b""),
    ))  # fmt: skip
    text = b"pagewire hello" + b"".join(len(part).to_bytes(4, "little") + part for part in (b"P", said, b"challenge"))
    assert hello.proof == hmac.new(b"s", text, hashlib.sha256).digest()
    welcome = greeter("P").welcome(hello, b"challenge", b"answer")
    answer = bytes.fromhex("50574b56040301000000") + lengths_before(b"layer_outer", b"answer", b"")
    text = b"pagewire welcome" + b"".join(
        len(part).to_bytes(4, "little") + part for part in (b"P", said, b"challenge", answer)
    )
    assert welcome.proof == hmac.new(b"s", text, hashlib.sha256).digest()
    assert welcome.num_groups == 1


def test_a_hello_is_good_for_one_pod_one_challenge_and_as_it_was_said() -> None:
    hello = greeter("D").hello("P", b"challenge", b"nonce", 100, carrier="grpc", card=b"card")
    edits: list[dict[str, Any]] = [
        {"window_bytes": 10**9}, {"peer_id": "E"}, {"carrier": "shm"}, {"card": b"c"}, {"order": "head_outer"},
    ]  # fmt: skip
    edited = [(greeter("P"), dataclasses.replace(hello, **edit), b"challenge") for edit in edits]
    for pod, said, challenge in (
        *edited,
        (greeter("P2"), hello, b"challenge"),
        (greeter("P"), hello, b"another"),
        (greeter("P", secret=b"t"), hello, b"challenge"),
    ):
        with pytest.raises(Unauthenticated):
            pod.admit(said, challenge)
    with pytest.raises(PeerMismatch, match="block bytes 9 / 8"):
        greeter("P", block_bytes=9).admit(hello, b"challenge")


def test_an_empty_secret_is_refused_and_a_secret_is_not_shown() -> None:
    with pytest.raises(ValueError, match="empty"):
        greeter("D", secret=b"")
    assert "hidden" not in repr(greeter("D", secret=b"hidden"))
