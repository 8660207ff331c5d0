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


def test_beginnings_that_come_again_are_remembered_longest() -> None:
    watch = HitWatch()
    for i in range(MAX_BEGINNINGS):
        look(watch, 0.0, tokens=i)
    look(watch, 1000.0, tokens=0)
    look(watch, 1000.0, tokens=MAX_BEGINNINGS)  # for which 1 is forgotten, and not 0
    look(watch, 2000.0, tokens=0)
    look(watch, 2000.0, tokens=MAX_BEGINNINGS)
    assert watch.repeats == 3
    look(watch, 2000.0, tokens=1)
    assert watch.repeats == 3


def test_what_is_found_is_no_repeat_in_vain() -> None:
    watch = HitWatch()
    look(watch, 0.0)
    look(watch, 1000.0, hit=True)
    assert watch.repeats == 0
    look(watch, SETTLED_S, tokens=2)
    look(watch, 2 * SETTLED_S - 0.1, tokens=2)
    assert watch.repeats == 0
    look(watch, 2 * SETTLED_S, tokens=2)
    assert watch.repeats == 1


@pytest.mark.parametrize(
    ("unanswered", "salted", "cause"),
    [
        (MANY // 2 + 1, 0, Cause.NO_ANSWER),
        (MANY // 2, 0, Cause.NOTHING_PUBLISHED),
        (0, MANY // 2 + 1, Cause.SALT),
        (0, MANY // 2, Cause.NOTHING_PUBLISHED),
        (MANY // 2 + 1, MANY, Cause.NO_ANSWER),
    ],
)
def test_a_cause_has_to_be_that_of_more_than_half(unanswered: int, salted: int, cause: Cause) -> None:
    watch = HitWatch()
    look(watch, 0.0)
    for i in range(MANY):
        look(watch, SETTLED_S, first=b"g" if i < salted else b"f", answered=i >= unanswered)
    alarm = watch.alarm(WELL)
    assert alarm is not None
    assert (alarm.repeats, alarm.cause) == (MANY, cause)


def test_three_pods_that_do_not_fit_are_named() -> None:
    alarm = repeated().alarm(Evidence(refused={f"d{i}": f"why {i}" for i in (3, 1, 0, 2)}, blocks_cached=0))
    assert alarm is not None
    assert alarm.text.endswith("d0: why 0; d1: why 1; d2: why 2")


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
