"""Which keys a lookup reads, and what its answers come to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.core.block_hash import INDEX_STRIDE, BlockHash, chain, is_indexed, max_hit_blocks, root_hash
from pagewire.core.index_member import MAX_INDEX_ID, index_id_of, member
from pagewire.router.prefix_index import MAX_PROBES, Members, held, probes
from pagewire.router.strangers import MAX_STRANGERS, Strangers

ROOT = root_hash(model_digest="m", kv_fingerprint="k")
B = 16
LIVE = {member(index_id, tier): (f"d{index_id}", tier) for index_id in range(1, 5) for tier in (0, 1)}
D1, D2 = member(1, 0), member(2, 0)
D1_HOST, D2_HOST = member(1, 1), member(2, 1)
STRANGER = member(99, 0)


def hashes(num_tokens: int) -> list[BlockHash]:
    return chain(ROOT, list(range(num_tokens)), B)


@given(index_id=st.integers(1, MAX_INDEX_ID), tier=st.sampled_from([0, 1]))
def test_a_member_is_a_small_number_and_says_whose_it_is(index_id: int, tier: int) -> None:
    name = member(index_id, tier)
    assert 0 < int(name) < 2**31
    assert index_id_of(name) == index_id


def test_numbers_below_2_to_the_31_are_names_of_pods_in_two_tiers() -> None:
    assert {index_id_of(b"%d" % number) for number in (2**31 - 2, 2**31 - 1)} == {2**30 - 1}
    assert index_id_of(b"9" * 10_000) is None
    with pytest.raises(ValueError, match="tier"):
        member(1, 2)


def test_what_is_no_member_is_nobodys() -> None:
    for name in (b"", b"0", b"1", b"d0@1", b"-4", b"4.0", b" 4", b"9" * 40, str(2**31).encode(), "²".encode()):
        assert index_id_of(name) is None


@given(num_tokens=st.integers(0, 60_000))
def test_probes_are_indexed_few_and_reach_the_end(num_tokens: int) -> None:
    all_hashes = [BlockHash(i.to_bytes(16, "little")) for i in range(num_tokens // B)]
    asked = probes(all_hashes)
    depths = [probe.depth for probe in asked]
    assert depths == sorted(set(depths))
    assert len(asked) <= MAX_PROBES
    assert all(is_indexed(probe.depth) and probe.block_hash == all_hashes[probe.depth] for probe in asked)
    indexed = [depth for depth in range(len(all_hashes)) if is_indexed(depth)]
    assert (depths[-1:], depths[:1]) == (indexed[-1:], indexed[:1])


@given(cached_blocks=st.integers(0, 64), num_tokens=st.integers(1, 1100))
def test_what_is_held_is_matched_to_the_stride_and_never_beyond_what_may_hit(
    cached_blocks: int, num_tokens: int
) -> None:
    chain_ = hashes(num_tokens)
    there = {h for depth, h in enumerate(chain_[:cached_blocks]) if is_indexed(depth)}
    asked = probes(chain_)
    found = held(asked, [[D1] if p.block_hash in there else [] for p in asked], LIVE, num_tokens, B)
    strides = min(cached_blocks, len(chain_)) // INDEX_STRIDE
    want = min(strides * INDEX_STRIDE * B, (num_tokens - 1) // B * B)
    assert found.tokens.get("d1", 0) == want
    assert found.unknown == ()


NAMES = [*LIVE, STRANGER, b"garbage"]


@given(answers=st.lists(st.lists(st.sampled_from(NAMES), unique=True, max_size=6), max_size=8))
def test_whatever_is_answered_each_pod_has_the_prefix_that_it_names_without_a_gap(answers: list[list[bytes]]) -> None:
    num_tokens = len(answers) * INDEX_STRIDE * B + 5
    asked = probes(hashes(num_tokens))
    found = held(asked, answers, LIVE, num_tokens, B)
    for index_id in range(1, 5):
        names = (member(index_id, 0), member(index_id, 1))
        held_all = 0
        while held_all < len(answers) and any(name in answers[held_all] for name in names):
            held_all += 1
        in_pool = max((i + 1 for i in range(held_all) if names[0] in answers[i]), default=0)
        want = min(held_all * INDEX_STRIDE, max_hit_blocks(num_tokens, B)) * B
        assert found.tokens.get(f"d{index_id}", 0) == want
        if want:
            assert found.on_host[f"d{index_id}"] == want - in_pool * INDEX_STRIDE * B
    unknown = [(p.block_hash, name) for p, names in zip(asked, answers, strict=True) for name in names]
    assert list(found.unknown) == [entry for entry in unknown if entry[1] not in LIVE]


def test_each_key_that_is_asked_has_an_answer() -> None:
    with pytest.raises(ValueError, match="shorter"):
        held(probes(hashes(400)), [[D1]], LIVE, 400, B)


def test_strangers_say_nothing() -> None:
    asked = probes(hashes(400))
    answers: list[Members] = [[D2, STRANGER, b"nonsense"], [D1, D2], [D2]]
    found = held(asked, answers, LIVE, 400, B)
    assert found.tokens == {"d2": 384}  # d1 misses the shallow block, so what it says of deeper ones is wrong
    assert found.unknown == ((asked[0].block_hash, STRANGER), (asked[0].block_hash, b"nonsense"))


def test_what_left_the_pool_for_host_memory_is_still_held() -> None:
    asked = probes(hashes(400))
    answers: list[Members] = [[D1, D2_HOST], [D1_HOST, D2], [D1_HOST]]
    found = held(asked, answers, LIVE, 400, B)
    assert found.tokens == {"d1": 384, "d2": 256}
    assert found.on_host == {"d1": 256, "d2": 0}


def test_a_stranger_has_to_stay_one_for_a_while_before_its_entries_are_swept() -> None:
    strangers = Strangers(wait_s=5.0)
    entry = (hashes(16)[0], STRANGER)
    assert strangers.stale([entry], {1}, 100.0) == []
    assert strangers.stale([entry], {1}, 104.9) == []
    assert strangers.stale([entry], {1, 99}, 104.9) == []  # heard of in time
    assert strangers.stale([entry], {1}, 105.0) == []  # and gone again: it counts from now
    assert strangers.stale([entry], {1}, 110.0) == [entry]
    assert strangers.stale([(entry[0], b"garbage")], {1}, 0.0) == [(entry[0], b"garbage")]


def test_any_number_of_strangers_takes_bounded_memory_and_spares_the_known() -> None:
    strangers = Strangers(wait_s=0.5)
    key = hashes(16)[0]
    for index_id in range(2, 2 + 3 * MAX_STRANGERS):
        strangers.stale([(key, member(index_id, 0))], {1}, 0.0)
    assert len(strangers._met_s) <= MAX_STRANGERS
    newest = (key, member(1 + 3 * MAX_STRANGERS, 0))
    first_left = (key, member(2 + 2 * MAX_STRANGERS, 0))
    assert strangers.stale([newest], {1}, 0.0) == []  # met again: nobody has to be forgotten for it
    assert strangers.stale([first_left, newest], {1}, 0.5) == [first_left, newest]
    assert strangers.stale([(key, member(1, 0))], {1}, 100.0) == []
