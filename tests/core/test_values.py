"""Clock, fingerprint and timeline: small values that others rest on."""

from __future__ import annotations

import dataclasses
import hashlib

import pytest

from pagewire.core.clock import ManualClock, MonotonicClock
from pagewire.core.fingerprint import Fingerprint, tokenizer_digest
from pagewire.core.timeline import Phase, Stamp, Stopwatch, Timeline

FINGERPRINT = Fingerprint(
    model_name="m",
    model_digest="d",
    tokenizer_digest="t",
    kv_fingerprint="f",
    kv_layout="l",
    block_size=16,
    hash_version=1,
    max_model_len=512,
)


def test_a_manual_clock_moves_when_told_and_never_back() -> None:
    clock = ManualClock(5.0)
    clock.advance(1.5)
    assert clock.now() == 6.5
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(-1.0)
    real = MonotonicClock()
    assert real.now() <= real.now()


def test_a_fingerprint_names_every_difference() -> None:
    other = dataclasses.replace(FINGERPRINT, block_size=32, model_digest="e")
    assert FINGERPRINT.diff(FINGERPRINT) == ""
    assert FINGERPRINT.diff(other) == "model_digest: d / e; block_size: 16 / 32"


def test_pools_of_another_order_are_paired_and_another_layout_is_told_in_words() -> None:
    order = dataclasses.replace(FINGERPRINT, kv_layout="another order")
    assert FINGERPRINT.diff(order) == ""
    assert order == FINGERPRINT
    layout = dataclasses.replace(FINGERPRINT, kv_fingerprint="g", kv_layout="k")
    assert FINGERPRINT.diff(layout) == "kv_fingerprint: f / g; kv_layout: l / k"
    assert layout != FINGERPRINT


def test_a_tokenizer_is_named_by_16_digits_over_its_file() -> None:
    named = tokenizer_digest(b"{}")
    assert named == hashlib.blake2b(b"{}", digest_size=8).hexdigest()
    assert len(named) == 16
    assert tokenizer_digest(b"{ }") != named


def test_the_first_stamp_of_a_phase_stands() -> None:
    watch = Stopwatch("router")
    watch.stamp(Phase.RECEIVED, 1.0)
    watch.stamp(Phase.FIRST_TOKEN, 3.0)
    watch.stamp(Phase.FIRST_TOKEN, 9.0)
    timeline = watch.timeline()
    assert timeline.process == "router"
    assert timeline.stamps == (Stamp(Phase.RECEIVED, 1.0), Stamp(Phase.FIRST_TOKEN, 3.0))
    assert timeline.between_s(Phase.RECEIVED, Phase.FIRST_TOKEN) == 2.0
    assert timeline.between_s(Phase.RECEIVED, Phase.JOINED) is None
    assert timeline.between_s(Phase.JOINED, Phase.RECEIVED) is None
    assert Timeline(process="p").between_s(Phase.RECEIVED, Phase.JOINED) is None
