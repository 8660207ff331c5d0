"""Who is paired with whom, and what both prove. Wire versions: tests/compatibility; on real streams: test_link."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
from typing import Any

import pytest

from pagewire.core.errors import PeerMismatch, Unauthenticated
from pagewire.core.fingerprint import Fingerprint
from pagewire.core.messages import OLDEST_WIRE_VERSION, WIRE_VERSION, Challenge, Role, Welcome
from pagewire.serving.handshake import Identity

PRINT = Fingerprint(
    model_name="m", model_digest="d", tokenizer_digest="t", kv_fingerprint="k", kv_layout="l", block_size=16,
    hash_version=1, max_model_len=128,
)  # fmt: skip
CHALLENGE = Challenge(nonce=b"challenge")


def identity(name: str, **changes: Any) -> Identity:
    return Identity(**{"peer_id": name, "incarnation": "1", "role": Role.DECODE, "secret": b"hush", **changes})


def paired(one: Identity, other: Identity) -> Welcome:
    """Return how `other` answers `one`, which dialled, found it well."""
    hello = one.hello(CHALLENGE, 5, b"nonce")
    welcome = other.answer(CHALLENGE, hello)
    one.check(hello, welcome)
    return welcome


def test_a_secret_is_needed_and_not_shown() -> None:
    with pytest.raises(ValueError, match="the cluster secret is empty"):
        identity("a", secret=b"")
    assert "hush" not in repr(identity("a"))


def test_both_say_who_they_are() -> None:
    one = identity("one", incarnation="7", role=Role.PREFILL, fingerprint=PRINT, transports=("tcp",))
    other = identity("other", incarnation="9", fingerprint=PRINT, transports=("tcp",))
    hello = one.hello(CHALLENGE, 5, b"nonce")
    assert (hello.peer_id, hello.incarnation, hello.role, hello.epoch) == ("one", "7", Role.PREFILL, 5)
    assert (hello.fingerprint, hello.transports, hello.nonce) == (PRINT, ("tcp",), b"nonce")
    welcome = paired(one, other)
    assert dataclasses.replace(welcome, proof=b"") == Welcome(
        wire_version=WIRE_VERSION, peer_id="other", incarnation="9", role=Role.DECODE, epoch=5, fingerprint=PRINT,
        transports=("tcp",),
    )  # fmt: skip


def test_a_proof_is_over_each_word_and_what_was_heard_with_their_lengths() -> None:
    def keyed(kind: bytes, *parts: bytes) -> bytes:
        text = kind + b"".join(bytes([len(part), 0, 0, 0]) + part for part in parts)
        return hmac.new(b"hush", text, hashlib.sha256).digest()

    one, other = identity("one", role=Role.PREFILL), identity("other")
    hello = one.hello(CHALLENGE, 5, b"nonce")
    version = str(WIRE_VERSION).encode()
    assert hello.proof == keyed(b"Hello", b"one", b"1", b"prefill", b"5", version, b"challenge", b"nonce")
    welcome = other.answer(CHALLENGE, hello)
    assert welcome.proof == keyed(b"Welcome", b"other", b"1", b"decode", b"5", version, hello.proof)


@pytest.mark.parametrize(
    "forged", [{"peer_id": "two"}, {"incarnation": "2"}, {"role": Role.DECODE}, {"epoch": 6}, {"nonce": b"other"}]
)
def test_what_says_other_than_was_proved_is_nobody_s(forged: dict[str, Any]) -> None:
    hello = identity("one", role=Role.PREFILL).hello(CHALLENGE, 5, b"nonce")
    with pytest.raises(Unauthenticated, match="does not hold this cluster's secret"):
        identity("other").answer(CHALLENGE, dataclasses.replace(hello, **forged))
    with pytest.raises(Unauthenticated):
        identity("other").answer(Challenge(nonce=b"another"), hello)


def test_who_has_another_secret_is_refused_by_either_side() -> None:
    one, stranger = identity("one"), identity("stranger", secret=b"else")
    hello = one.hello(CHALLENGE, 5, b"nonce")
    with pytest.raises(Unauthenticated, match="one does not hold"):
        stranger.answer(CHALLENGE, hello)
    welcome = stranger.answer(CHALLENGE, stranger.hello(CHALLENGE, 5, b"nonce"))
    with pytest.raises(Unauthenticated, match="stranger does not hold"):
        one.check(hello, welcome)


@pytest.mark.parametrize(
    ("ours", "theirs", "common"),
    [
        (("rdma", "shm", "tcp"), ("tcp", "shm"), ("shm", "tcp")),
        (("tcp",), ("shm", "tcp"), ("tcp",)),
        ((), ("tcp",), ()),
        (("tcp",), (), ()),
        ((), (), ()),
    ],
)
def test_transports_are_those_of_both_in_the_order_of_who_answers(
    ours: tuple[str, ...], theirs: tuple[str, ...], common: tuple[str, ...]
) -> None:
    assert paired(identity("them", transports=theirs), identity("us", transports=ours)).transports == common


def test_without_a_common_transport_there_is_no_pair() -> None:
    with pytest.raises(PeerMismatch, match=r"no common transport: ours \('tcp',\), them's \('shm', 'rdma'\)"):
        paired(identity("them", transports=("shm", "rdma")), identity("us", transports=("tcp",)))


def test_fingerprints_are_compared_by_both_where_both_have_one() -> None:
    other_print = dataclasses.replace(PRINT, block_size=32)
    for ours, theirs in ((PRINT, PRINT), (PRINT, None), (None, PRINT), (None, None)):
        assert paired(identity("them", fingerprint=theirs), identity("us", fingerprint=ours)).fingerprint == ours
    them, us = identity("them", fingerprint=PRINT), identity("us", fingerprint=other_print)
    with pytest.raises(PeerMismatch, match="us / them: block_size: 32 / 16"):
        paired(them, us)
    hello = dataclasses.replace(them.hello(CHALLENGE, 5, b"nonce"), fingerprint=None)  # no part of the proof
    with pytest.raises(PeerMismatch, match="them / us: block_size: 16 / 32"):
        them.check(hello, us.answer(CHALLENGE, hello))


@pytest.mark.parametrize("version", range(OLDEST_WIRE_VERSION - 1, WIRE_VERSION + 2))
def test_a_version_that_was_not_offered_is_not_taken_from_whoever_proves_who_it_is(version: int) -> None:
    one, other = identity("one"), identity("other")
    hello = one.hello(CHALLENGE, 5, b"nonce")
    welcome = dataclasses.replace(other.answer(CHALLENGE, hello), wire_version=version)
    welcome = dataclasses.replace(welcome, proof=other._proof(welcome, hello.proof))
    if OLDEST_WIRE_VERSION <= version <= WIRE_VERSION:
        return one.check(hello, welcome)
    with pytest.raises(PeerMismatch, match=f"chose wire version {version}"):
        one.check(hello, welcome)
    return None


def test_a_socket_beside_a_stream_is_opened_by_what_holds_the_secret() -> None:
    one, other = identity("one"), identity("other")
    welcome = paired(one, other)
    assert one.socket_tokens(welcome) == other.socket_tokens(welcome)
    expected = tuple(hmac.new(b"hush", label + welcome.proof, hashlib.sha256).digest() for label in (b"guest", b"host"))
    assert one.socket_tokens(welcome) == expected
