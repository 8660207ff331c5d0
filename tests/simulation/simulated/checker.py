"""What must be true of every history, whatever went wrong in it: the invariants of a request's life.

Reads the plan and the recorded history, nothing else, after the fact. Each rule says what it found broken, by name, so
that a smaller plan can be held to the same rule. Knows the model's answers; nothing of how the product works.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from pagewire.router.dispatch import MAX_HANDOVERS
from simulated.faults import FAULTS
from simulated.history import Event, History
from simulated.model import answer
from simulated.plan import Plan, RequestPlan

ENDS = ("finished", "failed", "left", "broken")
MAX_ATTEMPTS = 3
LATE_S = 2.5  # beyond a deadline, to say that it has passed
ROUNDING = 1e-9
REST_S = 1.5  # until all is given back that nobody wants
HARMLESS = frozenset(
    ("leave", "step_clock", "kill_router", "duplicate_bulk", *(kind for kind in FAULTS if kind.startswith("redis_")))
)
FASTEST, SLOWEST = 1.11, 0.89  # clocks
BROKEN = {
    "endless": "a request did not end",
    "stuck": "the world stands still or spins",
    "not_up": "the cluster did not start",
    "not_well": "the cluster did not recover",
    "leftover": "something is held for nobody",
    "broken_pool": "a pool's bookkeeping is broken",
    "breach": "memory was touched that is not to be touched",
    "error": "an error that nobody foresaw",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that does not hold, and how."""

    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


Rule = Callable[["Case"], Iterator[str]]
RULES: dict[str, Rule] = {}


def rule(check: Rule) -> Rule:
    """Add a rule under its function's name."""
    RULES[check.__name__] = check
    return check


class Case:
    """A history with what it is held against. `struck` are the kinds of faults that did something."""

    def __init__(self, plan: Plan, history: History, struck: Collection[str]) -> None:
        self.plan = plan
        self.history = history
        self.struck = struck
        self.events: defaultdict[str, list[Event]] = defaultdict(list)
        for event in history.events:
            self.events[event.who].append(event)
        self.asked = [event.who for event in history.of("asked")]
        self.requests = {request.name: request for request in (*plan.requests, *plan.probes())}

    def of(self, name: str, kind: str) -> list[Event]:
        """Return the events of a kind of a request."""
        return [event for event in self.events[name] if event.kind == kind]

    def streams(self, name: str) -> dict[int, list[Event]]:
        """Return what came of each sequence of a request."""
        found: defaultdict[int, list[Event]] = defaultdict(list)
        for event in self.of(name, "tokens"):
            found[event.what["index"]].append(event)
        return found


def violations(plan: Plan, history: History, struck: Collection[str]) -> list[Violation]:
    """Return everything that is wrong with a history."""
    case = Case(plan, history, struck)
    return [Violation(name, text) for name, check in RULES.items() for text in check(case)]


@rule
def nothing_broke(case: Case) -> Iterator[str]:
    """Invariants 4 and 5, and whatever the world itself found wrong."""
    for event in case.history.events:
        if event.kind in BROKEN:
            yield f"{BROKEN[event.kind]}: {event.who} {event.what}"


@rule
def ends_once(case: Case) -> Iterator[str]:
    """Invariant 1: every admitted request ends exactly once."""
    for name in case.asked:
        ends = [event.kind for event in case.events[name] if event.kind in ENDS]
        if len(ends) != 1:
            yield f"{name} ended {ends or 'never'}"
        last = [event for event in case.events[name] if event.kind in (*ENDS, "tokens")]
        if ends and last[-1].kind == "tokens":
            yield f"{name} went on after its end"


@rule
def tokens_are_right(case: Case) -> Iterator[str]:
    """Invariants 2, 3 and 9: what was streamed is the beginning of what one process says alone, in order, once."""
    for name in case.asked:
        request = case.requests[name]
        for index, events in case.streams(name).items():
            said = tuple(token for event in events for token in event.what["tokens"])
            right, reason = expected(request, index)
            if said != right[: len(said)]:
                yield f"{name} sequence {index} said {said}, right is {right}"
            reasons = [event.what["reason"] for event in events if event.what["reason"]]
            if reasons and (reasons != [reason] or said != right):
                yield f"{name} sequence {index} ended {reasons} after {len(said)} tokens of {len(right)}, not {reason}"


@rule
def finished_is_whole(case: Case) -> Iterator[str]:
    """Invariant 3: a finished request has all of its sequences whole, and its usage is what was streamed."""
    for event in case.history.of("finished"):
        request, streams = case.requests[event.who], case.streams(event.who)
        whole = sum(any(each.what["reason"] for each in events) for events in streams.values())
        if whole != request.n:
            yield f"{event.who} finished with {whole} of {request.n} sequences"
        streamed = sum(len(each.what["tokens"]) for events in streams.values() for each in events)
        if (event.what["completion"], event.what["prompt"]) != (streamed, len(request.prompt)):
            yield f"{event.who} counts {event.what}, streamed {streamed} of a prompt of {len(request.prompt)}"
        if not 0 <= event.what["cached"] <= len(request.prompt):
            yield f"{event.who} counts {event.what['cached']} cached tokens"


@rule
def failures_are_excused(case: Case) -> Iterator[str]:
    """A client notices a fault only where the design says so."""
    excuses = frozenset[str]().union(*(FAULTS[kind].excuses for kind in case.struck if kind in FAULTS))
    if case.plan.is_tight:
        excuses |= {"overloaded"}
    for event in case.history.of("failed"):
        if event.what["cause"] not in excuses and not case.requests[event.who].may_fail(event.what["cause"]):
            yield f"{event.who} failed: {event.what}, with no more wrong than {sorted(case.struck)}"


@rule
def deadlines_hold(case: Case) -> Iterator[str]:
    """A deadline is said to have passed when it has, and soon after."""
    for name in case.asked:
        request, (asked, *_), ends = case.requests[name], case.of(name, "asked"), case.events[name]
        for event in ends:
            took_s = event.at_s - asked.at_s
            if event.kind == "failed" and event.what["cause"] == "deadline_exceeded":
                if took_s < request.timeout_s / FASTEST:
                    yield f"{name} was told after {took_s} s that its deadline has passed"
            elif event.kind in ENDS and took_s > request.timeout_s / SLOWEST + LATE_S and not request.reads_s:
                yield f"{name} ended {event.kind} after {took_s} s"


@rule
def tries_are_bounded(case: Case) -> Iterator[str]:
    """Invariant 7: no request is tried more often than its limit."""
    tries = Counter(event.what["request"] for event in case.history.of("submit"))
    for name, number in tries.items():
        if number > MAX_ATTEMPTS + MAX_HANDOVERS:
            yield f"{name} was submitted {number} times"


@rule
def retries_are_budgeted(case: Case) -> Iterator[str]:
    """Invariant 7: a router's second attempts are no more than its reserve, and a share of what it was asked.

    What a pod that goes away has handed over costs nothing.
    """
    plan = case.plan
    asked, spent = Counter[str](), Counter[str]()  # by router, since it started
    latest: dict[str, str] = {}  # attempt of each request
    handed_over: set[str] = set()
    for event in case.history.events:
        match event.kind:
            case "starts":
                asked[event.who] = spent[event.who] = 0
            case "asked":
                asked[event.what["router"]] += 1
            case "hands_over":
                handed_over.add(event.what["attempt"])
            case "submit":
                name, attempt = event.what["request"], event.what["attempt"]
                spent[event.who] += name in latest and latest[name] not in handed_over
                latest[name] = attempt
                if spent[event.who] > plan.retry_burst + plan.retry_ratio * asked[event.who] + ROUNDING:
                    yield (
                        f"{event.who} submits {attempt}: {spent[event.who]} second attempts for {asked[event.who]} "
                        f"requests, with a reserve of {plan.retry_burst} and {plan.retry_ratio} for each"
                    )


@rule
def nothing_enters_a_drain(case: Case) -> Iterator[str]:
    """Invariant 8: after a drain began, nothing new is admitted."""
    draining: dict[str, str] = {}  # pod -> its incarnation
    late: set[tuple[str, str, str]] = set()
    for event in case.history.events:
        match event.kind:
            case "drains":
                draining[event.who] = event.what["incarnation"]
            case "submit" if event.what["pod"] in draining:
                late.add((event.what["pod"], draining[event.what["pod"]], event.what["attempt"]))
            case "admits" if (event.who, event.what["incarnation"], event.what["attempt"]) in late:
                yield f"{event.who} admits {event.what['attempt']}, which came after its drain began"


@rule
def nothing_comes_before_readiness(case: Case) -> Iterator[str]:
    """Invariant 8: before it is ready, nothing is sent to a pod and nothing let in, and a router sends nothing."""
    ready: set[tuple[str, str]] = set()  # pods with their incarnations; routers have none
    for event in case.history.events:
        match event.kind:
            case "starts":
                ready.discard((event.who, ""))
            case "ready":
                ready.add((event.who, event.what.get("incarnation", "")))
            case "submit":
                pod = event.what["pod"], event.what["incarnation"]
                if (event.who, "") not in ready:
                    yield f"{event.who} submits {event.what['attempt']} before it is ready"
                if pod not in ready:
                    yield f"{event.who} submits {event.what['attempt']} to {pod[0]} before that is ready"
            case "admits" if (event.who, event.what["incarnation"]) not in ready:
                yield f"{event.who} admits {event.what['attempt']} before it is ready"


@rule
def rests_soon(case: Case) -> Iterator[str]:
    """What a client leaves behind is given back soon, where nothing keeps anybody from answering."""
    if set(case.struck) <= HARMLESS:
        for event in case.history.of("at_rest"):
            if event.what["after_s"] > REST_S:
                yield f"it took {event.what['after_s']} s until nothing was held for anybody"


@rule
def tenants_are_apart(case: Case) -> Iterator[str]:
    """Invariant 6: what is said to be cached was computed for the same salt before."""
    for event in case.history.of("finished"):
        request = case.requests[event.who]
        (asked,) = case.of(event.who, "asked")
        held = 0
        for other in case.asked:
            before = case.of(other, "asked")[0].at_s <= event.at_s
            if other != event.who and before and case.requests[other].salt == request.salt:
                held = max(held, _common(request.prompt, _said(case.requests[other])))
        was_tried_again = event.what["attempts"] > 1 or event.what["causes"] or request.n > 1
        cached = max(event.what["decode_cached"], event.what["prefill_cached"])
        if cached > held and not was_tried_again:
            yield f"{event.who} found {cached} tokens cached, and {held} can have been, since {asked.at_s} s"


def expected(request: RequestPlan, index: int) -> tuple[tuple[int, ...], str]:
    """Return what a sequence of a request is to say, and why it ends."""
    said, reason = answer(
        request.prompt, request.max_tokens, request.stop_token_ids, request.seed, request.is_greedy, index
    )
    return said, reason.value


def _said(request: RequestPlan) -> tuple[int, ...]:
    return request.prompt + expected(request, 0)[0]


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
