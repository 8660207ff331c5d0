"""The checker finds what is wrong: a whole history passes, and each way to spoil it breaks the rule that it should."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from simulated.checker import RULES, expected, violations
from simulated.history import Event, History
from simulated.model import BLOCK
from simulated.plan import Plan, RequestPlan, draw_plan

REQUEST = RequestPlan(name="r0", at_s=0.0, family=0, num_shared=3 * BLOCK, num_own=5, max_tokens=6)
OTHER = replace(REQUEST, name="r1", num_own=BLOCK, salt="other")
PLAN: Plan = replace(draw_plan(0, ("drain",)), requests=(REQUEST, OTHER), max_num_waiting=32)
SAID, REASON = expected(REQUEST, 0)
ID = "0123"


def whole() -> list[Event]:
    """A request that was answered as it should be."""
    finished = {
        "prompt": len(REQUEST.prompt), "completion": len(SAID), "cached": 0, "attempts": 1, "decode_cached": 0,
        "prefill_cached": 0, "causes": (),
    }  # fmt: skip
    return [
        Event(0.0, "asked", "r0", {}),
        Event(0.1, "submit", "router0", {"request": ID, "attempt": f"{ID}.1", "pod": "d1"}),
        Event(0.1, "admits", "d1", {"attempt": f"{ID}.1", "incarnation": "a"}),
        Event(0.2, "tokens", "r0", {"index": 0, "tokens": SAID[:2], "reason": ""}),
        Event(0.3, "tokens", "r0", {"index": 0, "tokens": SAID[2:], "reason": REASON}),
        Event(0.4, "finished", "r0", finished),
        Event(0.5, "at_rest", "world", {"after_s": 0.1}),
    ]


def broken(events: list[Event], struck: tuple[str, ...] = ()) -> set[str]:
    """Return the rules that do not hold."""
    return {violation.rule for violation in violations(PLAN, History(events), struck)}


def changed(events: list[Event], kind: str, **what: object) -> list[Event]:
    """Return the events, those of a kind with something else in them."""
    return [replace(each, what=each.what | what) if each.kind == kind else each for each in events]


def without(events: list[Event], kind: str) -> list[Event]:
    return [each for each in events if each.kind != kind]


def failed(at_s: float, cause: str) -> Event:
    return Event(at_s, "failed", "r0", {"cause": cause, "message": ""})


SPOILT: dict[str, tuple[str, Callable[[list[Event]], list[Event]]]] = {
    "no end": ("ends_once", lambda events: without(events, "finished")),
    "two ends": ("ends_once", lambda events: [*events, Event(0.6, "left", "r0", {})]),
    "more after the end": (
        "ends_once",
        lambda events: [*events, Event(0.6, "tokens", "r0", {"index": 0, "tokens": (), "reason": ""})],
    ),
    "a wrong token": ("tokens_are_right", lambda events: changed(events, "tokens", tokens=(SAID[0] + 1,))),
    "a token twice": ("tokens_are_right", lambda events: [*events[:4], events[3], *events[4:]]),
    "a token lost": ("tokens_are_right", lambda events: [*events[:3], *events[4:]]),
    "another reason": ("tokens_are_right", lambda events: changed(events, "tokens", reason="stop")),
    "not all of it": ("finished_is_whole", lambda events: [*events[:4], *events[5:]]),
    "a wrong count": ("finished_is_whole", lambda events: changed(events, "finished", completion=1)),
    "more cached than there is": ("finished_is_whole", lambda events: changed(events, "finished", cached=999)),
    "an error for nothing": ("failures_are_excused", lambda events: [*events[:4], failed(0.3, "pod_lost")]),
    "a deadline too soon": ("deadlines_hold", lambda events: [*events[:4], failed(0.3, "deadline_exceeded")]),
    "an end too late": (
        "deadlines_hold",
        lambda events: [replace(each, at_s=40.0) if each.kind == "finished" else each for each in events],
    ),
    "tries without end": ("tries_are_bounded", lambda events: [*events[:1], *[events[1]] * 12, *events[2:]]),
    "let into a drain": (
        "nothing_enters_a_drain",
        lambda events: [Event(0.0, "drains", "d1", {"incarnation": "a"}), *events],
    ),
    "not given back for long": ("rests_soon", lambda events: changed(events, "at_rest", after_s=5.0)),
    "cached before anybody": ("tenants_are_apart", lambda events: changed(events, "finished", decode_cached=BLOCK)),
    "cached for another tenant": (
        "tenants_are_apart",
        lambda events: [
            Event(0.0, "asked", "r1", {}),
            Event(0.0, "left", "r1", {}),
            *changed(events, "finished", decode_cached=BLOCK),
        ],
    ),
    "something left over": ("nothing_broke", lambda events: [*events, Event(9.0, "leftover", "d1", {"held": "1"})]),
}


def test_a_whole_history_passes() -> None:
    assert broken(whole()) == set()


@pytest.mark.parametrize("spoilt", SPOILT)
def test_a_spoilt_history_does_not(spoilt: str) -> None:
    rule, spoil = SPOILT[spoilt]
    assert rule in broken(spoil(whole()))


def test_every_rule_can_fail() -> None:
    assert {rule for rule, _ in SPOILT.values()} == set(RULES)


def test_a_pod_that_came_back_may_admit() -> None:
    drained = [Event(0.0, "drains", "d1", {"incarnation": "before"}), *whole()]
    assert broken(drained) == set()


def test_a_failure_is_excused_by_what_struck_alone() -> None:
    events = [*whole()[:4], failed(0.3, "pod_lost")]
    assert "failures_are_excused" not in broken(events, ("kill_decode",))
    assert "failures_are_excused" in broken(events, ("kill_prefill", "redis_away"))
