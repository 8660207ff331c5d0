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
PLAN: Plan = replace(
    draw_plan(0, ("drain",)), requests=(REQUEST, OTHER), max_num_waiting=32, retry_burst=1, retry_ratio=0.5
)
SAID, REASON = expected(REQUEST, 0)
ID = "0123"


STARTED = [
    Event(-1.0, "starts", "router0", {}),
    Event(-0.9, "ready", "router0", {}),
    Event(-0.9, "ready", "d1", {"incarnation": "a"}),
]


SUBMIT, TOKENS = 4, 6  # where these are, in a whole history


def submitted(number: int) -> Event:
    """An attempt of a request goes to a pod."""
    return Event(
        0.1, "submit", "router0", {"request": ID, "attempt": f"{ID}.{number}", "pod": "d1", "incarnation": "a"}
    )


def whole() -> list[Event]:
    """A request that was answered as it should be."""
    finished = {
        "prompt": len(REQUEST.prompt), "completion": len(SAID), "cached": 0, "attempts": 1, "decode_cached": 0,
        "prefill_cached": 0, "causes": (),
    }  # fmt: skip
    return [
        *STARTED,
        Event(0.0, "asked", "r0", {"router": "router0"}),
        submitted(1),
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


def twice(events: list[Event], at: int, times: int = 2) -> list[Event]:
    """Return the events, the one at a place twice, or as often as is said."""
    return [*events[:at], *[events[at]] * times, *events[at + 1 :]]


def tried_again(*between: Event, times: int = 2) -> list[Event]:
    """Return a history in which a request is submitted `times` times more, `between` before the second of all."""
    events = whole()
    more = [submitted(number) for number in range(2, 2 + times)]
    return [*events[: SUBMIT + 1], *between, *more, *events[SUBMIT + 1 :]]


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
    "a token twice": ("tokens_are_right", lambda events: twice(events, TOKENS)),
    "a token lost": ("tokens_are_right", lambda events: [*events[:TOKENS], *events[TOKENS + 1 :]]),
    "another reason": ("tokens_are_right", lambda events: changed(events, "tokens", reason="stop")),
    "not all of it": ("finished_is_whole", lambda events: [*events[: TOKENS + 1], *events[TOKENS + 2 :]]),
    "a wrong count": ("finished_is_whole", lambda events: changed(events, "finished", completion=1)),
    "more cached than there is": ("finished_is_whole", lambda events: changed(events, "finished", cached=999)),
    "an error for nothing": ("failures_are_excused", lambda events: [*events[: TOKENS + 1], failed(0.3, "pod_lost")]),
    "a deadline too soon": ("deadlines_hold", lambda events: [*events[: TOKENS + 1], failed(0.3, "deadline_exceeded")]),
    "an end too late": (
        "deadlines_hold",
        lambda events: [replace(each, at_s=40.0) if each.kind == "finished" else each for each in events],
    ),
    "tries without end": ("tries_are_bounded", lambda events: twice(events, SUBMIT, 12)),
    "tries beyond the budget": ("retries_are_budgeted", lambda events: tried_again()),
    "submitted before the pod is ready": (
        "nothing_comes_before_readiness",
        lambda events: changed(events, "submit", incarnation="b"),
    ),
    "admitted before the pod is ready": (
        "nothing_comes_before_readiness",
        lambda events: changed(events, "admits", incarnation="b"),
    ),
    "submitted before the router is ready": (
        "nothing_comes_before_readiness",
        lambda events: [*events[:SUBMIT], Event(0.1, "starts", "router0", {}), *events[SUBMIT:]],
    ),
    "let into a drain": (
        "nothing_enters_a_drain",
        lambda events: [Event(0.0, "drains", "d1", {"incarnation": "a"}), *events],
    ),
    "not given back for long": ("rests_soon", lambda events: changed(events, "at_rest", after_s=5.0)),
    "cached before anybody": ("tenants_are_apart", lambda events: changed(events, "finished", decode_cached=BLOCK)),
    "cached for another tenant": (
        "tenants_are_apart",
        lambda events: [
            Event(0.0, "asked", "r1", {"router": "router0"}),
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
    events = [*whole()[: TOKENS + 1], failed(0.3, "pod_lost")]
    assert "failures_are_excused" not in broken(events, ("kill_decode",))
    assert "failures_are_excused" in broken(events, ("kill_prefill", "redis_away"))


def test_a_budget_is_a_reserve_and_a_share_of_what_a_router_was_asked_since_it_started() -> None:
    asked = [Event(0.1, "asked", "r1", {"router": "router0"}), Event(0.2, "left", "r1", {})]
    elsewhere = [replace(asked[0], what={"router": "router1"}), asked[1]]
    started = [*STARTED[:2]]
    assert broken(tried_again(times=1)) == set()
    assert broken(tried_again(times=2)) == {"retries_are_budgeted"}
    assert broken(tried_again(*asked, times=2)) == set(), "a reserve of one, and a half for each of two"
    assert broken(tried_again(*asked, times=3)) == {"retries_are_budgeted"}
    assert broken(tried_again(*elsewhere, times=2)) == {"retries_are_budgeted"}
    assert broken(tried_again(*asked, *started, times=2)) == {"retries_are_budgeted"}, "it has forgotten what it earned"


def test_what_is_handed_over_costs_no_budget() -> None:
    def handed_over(number: int) -> Event:
        return Event(0.1, "hands_over", "d1", {"attempt": f"{ID}.{number}"})

    assert broken(tried_again(handed_over(1))) == set()
    assert broken(tried_again(handed_over(1), times=3)) == {"retries_are_budgeted"}
    assert broken(tried_again(handed_over(9))) == {"retries_are_budgeted"}


def test_a_router_that_came_back_has_to_be_ready_again() -> None:
    again = [*STARTED[:2], *whole()]
    assert broken(again) == set()
    assert broken([*STARTED, STARTED[0], *whole()[len(STARTED) :]]) == {"nothing_comes_before_readiness"}
