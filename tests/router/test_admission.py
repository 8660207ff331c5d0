"""The limits at the door: places, tenants, tokens. Every `enter` has one `leave`, no bound is ever passed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pagewire.core.errors import Overloaded, status_of
from pagewire.router.admission import Admission
from pagewire.router.drain_rate import DrainRate
from pagewire.router.refusals import Reason, Refused
from pagewire.router.tenant_limits import SWEEP_AT, TenantLimits
from pagewire.router.tenants import ANONYMOUS, Tenant

MAX = 5
TENANTS = (
    Tenant(name="free"),
    Tenant(name="two", max_concurrent=2),
    Tenant(name="slow", tokens_per_s=10.0, burst_tokens=100),
    Tenant(name="both", max_concurrent=3, tokens_per_s=5.0),
)


def refusal(call: object, *arguments: object) -> Refused:
    with pytest.raises(Refused) as raised:
        call(*arguments)  # type: ignore[operator]
    return raised.value


@contextmanager
def waiting(admission: Admission, tenant: Tenant = ANONYMOUS, now_s: float = 0.0) -> Iterator[None]:
    """Be a request that has come and waits to be read."""
    with admission.coming(now_s, tenant), admission.unread():
        yield


def test_a_full_router_refuses_and_says_when_a_place_came_free_the_last_times() -> None:
    admission = Admission(2)
    admission.enter(0.0)
    admission.enter(0.0)
    first = refusal(admission.check, 0.0)
    assert (first.reason, first.retry_after_s) == (Reason.ROUTER_FULL, 1.0)
    assert status_of(first) == status_of(Overloaded(""))
    now_s = 0.0
    for _ in range(100):
        now_s += 8.0
        admission.leave(now_s)
        admission.enter(now_s)
    admission.leave(now_s)
    admission.check(now_s)
    admission.enter(now_s)
    assert 7.0 < refusal(admission.enter, now_s).retry_after_s < 8.1
    assert admission.active == 2
    with pytest.raises(ValueError, match="at least 1"):
        Admission(0)


def test_the_smallest_router_takes_one_and_a_tenant_as_many_as_both_bounds_allow() -> None:
    one = Admission(1)
    one.enter(0.0)
    assert refusal(one.enter, 0.0).reason is Reason.ROUTER_FULL
    most = {n: Admission(MAX).most(Tenant(name="a", max_concurrent=n)) for n in (0, 2, MAX, MAX + 1)}
    assert most == {0: MAX, 2: 2, MAX: MAX, MAX + 1: MAX}


def test_the_time_while_places_are_free_is_nobodys_wait() -> None:
    admission = Admission(2)
    admission.enter(0.0)
    admission.enter(4.0)
    admission.leave(15.0)  # 11 s after it was full: the mean goes from 1 s to 2 s
    admission.enter(100.0)
    assert refusal(admission.enter, 100.0).retry_after_s == 2.0
    assert refusal(admission.enter, 105.0).retry_after_s == 5.0


def test_each_interval_moves_the_mean_by_a_tenth() -> None:
    rate = DrainRate()
    assert rate.retry_after_s(10, 1000.0) == 10.0  # a guess
    rate.full(0.0)
    rate.full(3.0)  # it has been since 0
    rate.freed(6.0, is_full=True)
    rate.freed(6.5, is_full=False)
    assert rate.retry_after_s(10, 1000.0) == pytest.approx(10 * (0.9 * 1.5 + 0.1 * 0.5))
    assert rate.retry_after_s(0, 1000.0) == 1.0
    quick = DrainRate()
    quick.full(0.0)
    quick.freed(0.5, is_full=False)
    assert quick.retry_after_s(10, 0.5) == pytest.approx(9.5)


def test_an_idle_hour_says_nothing_of_the_rate_and_a_silence_counts() -> None:
    rate = DrainRate()
    for at_s in range(100):
        rate.full(float(at_s))
        rate.freed(at_s + 0.5, is_full=False)
    rate.full(4000.0)
    assert rate.retry_after_s(4, 4000.0) == pytest.approx(2.0, rel=0.1)
    assert rate.retry_after_s(4, 4005.0) == 20.0
    assert rate.retry_after_s(1000, 4000.0) == 60.0


def test_a_tenant_has_so_many_requests_and_others_are_not_touched() -> None:
    admission = Admission(MAX)
    two, free = TENANTS[1], TENANTS[0]
    admission.enter(0.0, two)
    admission.enter(0.0, two)
    assert refusal(admission.enter, 0.0, two).reason is Reason.TENANT_CONCURRENCY
    admission.enter(0.0, free)
    admission.leave(1.0, two)
    admission.enter(1.0, two)
    assert admission.active == 3


def test_who_waits_to_be_read_has_its_place_before_who_comes_later() -> None:
    admission = Admission(MAX)
    free, two = TENANTS[0], TENANTS[1]
    with waiting(admission, two), waiting(admission, two):
        assert refusal(admission.check, 0.0, two).reason is Reason.TENANT_CONCURRENCY
        admission.check(0.0, free)
        with waiting(admission, free), waiting(admission, free):
            admission.enter(0.0, free)
            assert (admission.active, admission.num_unread) == (1, 4)
            assert refusal(admission.check, 0.0, free).reason is Reason.ROUTER_FULL
            admission.enter(0.0, two)  # its turn: those behind it are nothing to it
            admission.enter(0.0, two)
    assert refusal(admission.check, 0.0, two).reason is Reason.TENANT_CONCURRENCY
    admission.check(0.0, free)
    assert (admission.active, admission.num_unread) == (3, 0)


def test_whose_body_is_under_way_has_a_place_among_its_tenants_alone() -> None:
    admission, two = Admission(2), TENANTS[1]
    with admission.coming(0.0, two), admission.coming(0.0, two):
        assert refusal(admission.check_tenant, 0.0, two).reason is Reason.TENANT_CONCURRENCY
        assert refusal(waiting(admission, two).__enter__).reason is Reason.TENANT_CONCURRENCY
        with waiting(admission):
            assert admission.num_unread == 1
            admission.check(0.0)
        admission.enter(0.0)
        admission.enter(0.0)
    admission.check_tenant(0.0, two)
    assert refusal(admission.check, 0.0, two).reason is Reason.ROUTER_FULL


def test_a_refusal_says_how_many_are_in_and_how_many_are_to_be_read() -> None:
    admission, two = Admission(3), TENANTS[1]
    with waiting(admission, two), waiting(admission, two):
        assert "0 requests of this tenant are running and 2 are to be read, which" in str(
            refusal(admission.check, 0.0, two)
        )
    admission.check(0.0, two)
    admission.enter(0.0, two)
    with waiting(admission), waiting(admission):
        assert "1 requests are running and 2 are to be read, which" in str(refusal(admission.check, 0.0))
    admission.enter(0.0, two)
    assert "2 requests of this tenant are running, which" in str(refusal(admission.check, 0.0, two))
    admission.enter(0.0)
    assert "3 requests are running, which" in str(refusal(admission.check, 0.0))


def test_a_tenant_is_told_when_its_own_requests_came_to_an_end() -> None:
    limits, two = TenantLimits(), TENANTS[1]
    assert limits.active(two) == 0
    limits.enter(two, 0.0)
    limits.enter(two, 4.0)
    limits.leave(two, 15.0)  # 11 s after it had as many as it may
    limits.leave(two, 16.0)
    limits.enter(two, 90.0)
    limits.enter(two, 100.0)
    assert refusal(limits.enter, two, 100.0).retry_after_s == 2.0
    assert refusal(limits.enter, two, 105.0).retry_after_s == 5.0
    assert limits.active(two) == 2


def test_a_tenant_may_have_a_single_request_and_half_a_token_a_second() -> None:
    limits, one = TenantLimits(), Tenant(name="one", max_concurrent=1, tokens_per_s=0.5, burst_tokens=2)
    limits.enter(one, 0.0)
    assert refusal(limits.enter, one, 0.0).reason is Reason.TENANT_CONCURRENCY
    limits.charge(one, 2, 0.0)
    assert refusal(limits.charge, one, 1, 0.0).retry_after_s == 2.0


def test_without_a_burst_a_tenant_has_the_tokens_of_a_second() -> None:
    limits, tenant = TenantLimits(), Tenant(name="a", tokens_per_s=10.0)
    limits.charge(tenant, 5, 0.0)
    limits.charge(tenant, 5, 0.0)
    refusal(limits.charge, tenant, 1, 0.0)


def test_what_an_answer_took_or_did_not_take_is_settled_with_its_tenant() -> None:
    admission, slow = Admission(MAX), TENANTS[2]
    admission.charge(100, 0.0, slow)
    admission.settle(49, 0.0, slow)  # 49 owed, and as much to pay as the last prompt had: 14.9 s
    assert refusal(admission.enter, 0.0, slow).retry_after_s == 14.9
    admission.settle(-60, 0.0, slow)
    admission.enter(0.0, slow)


def test_tokens_are_refused_until_the_bucket_has_them_and_no_longer() -> None:
    limits, slow = TenantLimits(), TENANTS[2]
    limits.enter(slow, 0.0)
    limits.charge(slow, 80, 0.0)
    late = refusal(limits.charge, slow, 60, 0.0)
    assert (late.reason, late.retry_after_s) == (Reason.TENANT_TOKENS, 4.0)
    soon = refusal(limits.charge, slow, 60, 3.99)
    assert "60 more may be had in 1.0 s" in soon.message  # as long as it is told to wait
    assert soon.retry_after_s == 1.0
    limits.charge(slow, 60, 4.0)
    limits.settle(slow, 200, 4.0)  # an answer: 200 owed
    assert refusal(limits.enter, slow, 4.0).retry_after_s == pytest.approx(26.0)  # a prompt like its last
    limits.charge(slow, 1000, 34.0)  # more than ever fits: when the bucket is full
    refusal(limits.charge, slow, 1, 34.0)
    limits.settle(slow, -1000, 34.0)  # it never ran
    limits.charge(slow, 100, 34.0)


def test_accounts_that_hold_nothing_are_forgotten() -> None:
    limits = TenantLimits()
    for i in range(3 * SWEEP_AT):
        tenant = Tenant(name=str(i), max_concurrent=1, tokens_per_s=1.0)
        limits.enter(tenant, float(i))
        if i % 100:
            limits.leave(tenant, float(i))
    assert limits.num_accounts <= SWEEP_AT + 3 * SWEEP_AT // 100 + 1
    assert limits.active(Tenant(name="0")) == 1


def test_who_is_to_be_read_is_not_forgotten() -> None:
    limits, waits = TenantLimits(), Tenant(name="waits", max_concurrent=1)
    limits.come(waits, 0.0)
    for number in range(2 * SWEEP_AT):
        each = Tenant(name=str(number))
        limits.enter(each, 0.0)
        limits.leave(each, 0.0)
    assert limits.num_accounts < SWEEP_AT + 2
    refusal(limits.check, waits, 0.0)
    limits.is_read(waits)
    limits.check(waits, 0.0)


def test_who_is_in_or_in_debt_is_remembered_and_others_until_there_are_twice_as_many() -> None:
    limits = TenantLimits()
    names = iter(range(10**6))

    def more(times: int, now_s: float) -> None:
        """Let new tenants, with and without a bucket, come and go."""
        for number in range(times):
            each = Tenant(name=f"t{next(names)}", tokens_per_s=number % 2)
            limits.enter(each, now_s)
            limits.leave(each, now_s)

    owing = Tenant(name="owing", tokens_per_s=1.0)
    limits.settle(owing, 1000, 0.0)
    more(SWEEP_AT - 1, 0.0)
    assert limits.num_accounts == SWEEP_AT
    busy = [Tenant(name=f"busy {number}") for number in range(SWEEP_AT)]
    limits.enter(busy[0], 0.0)
    assert limits.num_accounts == 2  # one that owes and one that is in
    refusal(limits.enter, owing, 0.0)
    for each in busy[1:]:
        limits.enter(each, 0.0)
    assert limits.num_accounts == SWEEP_AT + 1
    more(SWEEP_AT - 1, 0.0)  # none was idle when it was looked: the next time is with twice as many
    assert limits.num_accounts == 2 * SWEEP_AT
    more(1, 2000.0)  # when the debt is paid: the busy ones, and it
    assert limits.num_accounts == SWEEP_AT + 1


class AdmissionMachine(RuleBasedStateMachine):
    """Requests of several tenants come, are charged, and go, at any times."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.admission = Admission(MAX)
        self.inside: list[Tenant] = []
        self.unread: list[tuple[Tenant, ExitStack]] = []
        self.charged = {t.name: 0.0 for t in TENANTS}
        self.largest = {t.name: 0 for t in TENANTS}

    @rule(tenant=st.sampled_from(TENANTS))
    def enter(self, tenant: Tenant) -> None:
        num_own = self.inside.count(tenant)
        try:
            self.admission.enter(self.now_s, tenant)
        except Refused as error:
            refused = error
        else:
            self.inside.append(tenant)
            return
        assert refused.retry_after_s >= 1.0
        if refused.reason is Reason.ROUTER_FULL:
            assert len(self.inside) == MAX
        elif refused.reason is Reason.TENANT_CONCURRENCY:
            assert num_own == tenant.max_concurrent > 0
        else:
            assert tenant.tokens_per_s > 0

    @rule(tenant=st.sampled_from(TENANTS))
    def come(self, tenant: Tenant) -> None:
        num_own = (self.inside + [each for each, _ in self.unread]).count(tenant)
        try:
            self.admission.check(self.now_s, tenant)
        except Refused as error:
            if error.reason is Reason.ROUTER_FULL:
                assert len(self.inside) + len(self.unread) >= MAX
            elif error.reason is Reason.TENANT_CONCURRENCY:
                assert num_own >= tenant.max_concurrent > 0
            else:
                assert tenant.tokens_per_s > 0
            return
        assert len(self.inside) + len(self.unread) < MAX
        assert not 0 < tenant.max_concurrent <= num_own
        waits = ExitStack()
        waits.enter_context(waiting(self.admission, tenant, self.now_s))
        self.unread.append((tenant, waits))

    @rule(data=st.data(), goes_on=st.booleans())
    def is_read(self, data: st.DataObject, goes_on: bool) -> None:
        if self.unread:
            tenant, waits = self.unread.pop(data.draw(st.integers(0, len(self.unread) - 1)))
            waits.close()
            if goes_on:
                self.enter(tenant)

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.inside:
            tenant = self.inside.pop(data.draw(st.integers(0, len(self.inside) - 1)))
            self.admission.leave(self.now_s, tenant)

    @rule(tenant=st.sampled_from(TENANTS), tokens=st.integers(1, 300))
    def charge(self, tenant: Tenant, tokens: int) -> None:
        try:
            self.admission.charge(tokens, self.now_s, tenant)
        except Refused as error:
            # The time that is told is enough, if nobody takes anything meanwhile.
            self.now_s += error.retry_after_s + 1e-6
            self.admission.charge(tokens, self.now_s, tenant)
        self.charged[tenant.name] += tokens
        self.largest[tenant.name] = max(tokens, self.largest[tenant.name])

    @rule(tenant=st.sampled_from(TENANTS), tokens=st.integers(0, 300))
    def settle(self, tenant: Tenant, tokens: int) -> None:
        self.admission.settle(tokens, self.now_s, tenant)

    @rule(seconds=st.floats(0, 50))
    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds

    @invariant()
    def bounds_hold(self) -> None:
        assert self.admission.active == len(self.inside) <= MAX
        assert self.admission.num_unread == len(self.unread)
        for tenant in TENANTS:
            if tenant.max_concurrent:
                assert self.inside.count(tenant) <= tenant.max_concurrent
            if tenant.tokens_per_s:
                burst = tenant.burst_tokens or tenant.tokens_per_s
                most = burst + tenant.tokens_per_s * self.now_s + self.largest[tenant.name]
                assert self.charged[tenant.name] <= most + 1e-6

    def teardown(self) -> None:
        for tenant in self.inside:
            self.admission.leave(self.now_s, tenant)
        assert self.admission.active == 0


TestAdmission = AdmissionMachine.TestCase
TestAdmission.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
