"""The alarm for an index that never helps, and the cause that it names."""

from __future__ import annotations

import pytest

from pagewire.router.hit_watch import MANY, MAX_BEGINNINGS, SETTLED_S, Cause, Evidence, HitWatch, Looked

WELL = Evidence(refused={}, blocks_cached=1000)


def look(
    watch: HitWatch, now_s: float, *, tokens: int = 1, first: bytes = b"f", hit: bool = False, answered: bool = True
) -> None:
    watch.note(Looked(tokens=tokens, first=first, is_answered=answered, is_hit=hit), now_s)


def repeated(*, times: int = MANY, salts: bool = False, answered: bool = True) -> HitWatch:
    watch = HitWatch()
    look(watch, 0.0)
    for i in range(times):
        look(watch, SETTLED_S + i, first=b"f%d" % i if salts else b"f", answered=answered)
    return watch


def test_it_takes_many_repeats_and_one_hit_ends_it() -> None:
    watch = repeated(times=MANY - 1)
    assert watch.alarm(WELL) is None
    look(watch, 1000.0)
    alarm = watch.alarm(WELL)
    assert alarm is not None
    assert str(MANY) in alarm.text
    look(watch, 1001.0, tokens=7, hit=True)
    assert watch.alarm(WELL) is None
    assert watch.repeats == 0


def test_prompts_that_never_repeat_raise_none_and_cost_bounded_memory() -> None:
    watch = HitWatch()
    for i in range(2 * MAX_BEGINNINGS):
        look(watch, float(i), tokens=i)
    assert watch.repeats == 0
    assert len(watch._seen) == MAX_BEGINNINGS


def test_prompts_that_come_before_the_first_can_be_there_do_not_count() -> None:
    watch = HitWatch()
    for _ in range(2 * MANY):
        look(watch, SETTLED_S / 2)
    assert watch.repeats == 0


@pytest.mark.parametrize(
    ("watch", "evidence", "cause", "named"),
    [
        (repeated(answered=False), WELL, Cause.NO_ANSWER, "not answered"),
        (repeated(), Evidence(refused={"d1": "hash_version: 1 / 2"}, blocks_cached=5), Cause.UNLIKE_PODS, "1 / 2"),
        (repeated(salts=True), WELL, Cause.SALT, "salt"),
        (repeated(), Evidence(refused={}, blocks_cached=0), Cause.NOTHING_CACHED, "pools"),
        (repeated(), WELL, Cause.NOTHING_PUBLISHED, "cluster name"),
    ],
)
def test_it_names_the_likely_cause(watch: HitWatch, evidence: Evidence, cause: Cause, named: str) -> None:
    alarm = watch.alarm(evidence)
    assert alarm is not None
    assert alarm.cause is cause
    assert named in alarm.text


def test_an_index_that_has_helped_before_lost_what_it_had() -> None:
    watch = HitWatch()
    look(watch, 0.0)
    look(watch, SETTLED_S, hit=True)
    for i in range(MANY):
        look(watch, SETTLED_S + 1 + i)
    alarm = watch.alarm(WELL)
    assert alarm is not None
    assert alarm.cause is Cause.EVICTED
