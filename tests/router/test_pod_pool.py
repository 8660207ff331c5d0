"""The pool's bookkeeping where one pod is known as two incarnations, or pods of two versions are there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from fake_pod import FakePod, fingerprint

from pagewire.core.clock import MonotonicClock
from pagewire.core.messages import Role
from pagewire.router.cache_watch import CacheWatch
from pagewire.router.ejection import Ejection
from pagewire.router.outliers import Rules
from pagewire.router.pod import Pod
from pagewire.router.pods import PodPool
from pagewire.serving.link import Link


def link_to(pod: FakePod) -> Link:
    """Return what a link to this incarnation looks like to the pool."""
    peer = SimpleNamespace(
        peer_id=pod.pod_id, incarnation=pod.incarnation, fingerprint=pod.serves, epoch=1, role=pod.role
    )
    return cast(Link, SimpleNamespace(peer=peer, is_up=True, reason="over", close=lambda _: None))


def before_and_after() -> tuple[PodPool, Pod, Pod, FakePod]:
    """Return a pool that knows d0 as a decode pod, linked, and as the prefill pod that it became."""
    d0 = FakePod("d0", role=Role.DECODE)
    ejection = Ejection(Rules(), MonotonicClock())
    digest = d0.serves.tokenizer_digest
    pool = PodPool(name="", tokenizer_digest=digest, cache_watch=CacheWatch(), ejection=ejection)
    old = pool.add(d0.registration)
    pool.settle()
    pool.events(old).on_up(link_to(d0))
    d0.come_back(Role.PREFILL)
    return pool, old, pool.add(d0.registration), d0


def test_the_old_ones_dialer_meets_the_new_one_and_that_is_nobodys_loss() -> None:
    pool, old, new, d0 = before_and_after()
    pool.events(old).on_down(link_to(d0))
    link = link_to(d0)
    pool.events(new).on_up(link)
    assert pool.linked("d0") is new
    again = link_to(d0)  # it dials the address from before
    pool.events(old).on_up(again)
    assert (old.is_usable, new.is_usable) == (False, True)
    assert pool.linked("d0") is new  # whom others may fetch from
    assert pool.refused() == {}  # one that fits is there
    pool.events(old).on_down(again)
    pool.drop(old)
    assert pool.linked("d0") is new
    assert pool.usable(Role.PREFILL) == [new]
    assert [view.key for view in pool.roster.prefill(d0.serves)] == [new.key]
    assert list(pool.roster.decode(d0.serves)) == []


def test_entries_of_the_old_one_in_the_index_are_nobodys_from_then_on() -> None:
    pool, old, new, d0 = before_and_after()
    assert {pod_id for pod_id, _ in pool.index_members().values()} == {"d0"}
    before = set(pool.index_members())
    pool.events(old).on_down(link_to(d0))
    pool.events(new).on_up(link_to(d0))
    assert pool.index_members()
    assert not before & set(pool.index_members())


def test_what_was_held_against_the_old_one_is_not_held_against_the_new_one() -> None:
    pool, _, new, d0 = before_and_after()
    other = FakePod("d1", role=Role.PREFILL)
    pool.events(pool.add(other.registration)).on_up(link_to(other))
    for _ in range(Rules().failures):
        pool.ejection.link_broke(new)
    pool.events(new).on_up(link_to(d0))
    assert list(pool.ejected()) == [new.registration.member]  # as it would be, were it the same
    pool.drop(new)
    d0.come_back(Role.PREFILL)
    newest = pool.add(d0.registration)
    pool.events(newest).on_up(link_to(d0))
    assert pool.ejected() == {}
    assert newest in pool.usable(Role.PREFILL)


@pytest.mark.parametrize("misfit", ["by its registration", "by its own word"])
def test_pods_that_serve_something_else_are_not_missed_where_one_is_kept_out(misfit: str) -> None:
    pods = [FakePod(f"d{number}") for number in range(3)]
    pool = PodPool(
        name="",
        tokenizer_digest=pods[0].serves.tokenizer_digest,
        cache_watch=CacheWatch(),
        ejection=Ejection(Rules(), MonotonicClock()),
    )
    known = [pool.add(pod.registration) for pod in pods]
    pool.settle()
    for pod, entry in zip(pods, known, strict=True):
        pool.events(entry).on_up(link_to(pod))
    other = fingerprint(model_digest="new weights")
    for number in range(4):  # more than all that can be used
        waits = FakePod(f"e{number}", serves=other if misfit == "by its registration" else pods[0].serves)
        entry = pool.add(waits.registration)
        waits.serves = other
        pool.settle()
        if misfit == "by its own word":
            pool.events(entry).on_up(link_to(waits))
    for _ in range(Rules().failures):
        pool.ejection.link_broke(known[0])
    assert list(pool.ejected()) == ["d0@1"]
    assert pool.usable(Role.COLOCATED) == known[1:]
