"""What a tenant is allowed where nothing is said, and the tag under which pods know its share of their caches."""

from __future__ import annotations

import pytest
from google.rpc import error_details_pb2

from pagewire.core.cache_quota import MAX_TAG_BYTES
from pagewire.router.http_exchange import refusal
from pagewire.router.refusals import Refused
from pagewire.router.tenant_limits import TenantLimits, TokenBucket
from pagewire.router.tenants import ANONYMOUS, OPERATOR, Tenant
from pagewire.serving.rich_status import rich_status


def test_who_has_no_limits_may_have_any_number_of_requests_and_tokens() -> None:
    limits = TenantLimits()
    for tenant in (ANONYMOUS, Tenant(name="a", burst_tokens=1)):
        for _ in range(1000):
            limits.enter(tenant, 0.0)
            limits.charge(tenant, 10**6, 0.0)
        assert tenant.cache_quota is None


def test_a_rate_alone_is_also_the_burst() -> None:
    assert Tenant(name="a", tokens_per_s=10.0).burst_tokens == 0


def test_the_operator_alone_may_see_the_whole_cluster() -> None:
    assert [each.is_operator for each in (ANONYMOUS, Tenant(name="a"), OPERATOR)] == [False, False, True]


def test_every_router_has_the_same_tag_for_a_salt_and_it_tells_nothing_of_it() -> None:
    quota = Tenant(name="a", salt="secret", cache_share=0.25).cache_quota
    assert quota is not None
    assert quota.share == 0.25
    assert quota.tag.hex() == "e056e07f3080ac2ab255fea6041578f6"  # pods go by it, whichever router sends the request
    assert len(quota.tag) <= MAX_TAG_BYTES


@pytest.mark.parametrize("salt", ["", "other", "\ud800"])
def test_the_tag_follows_from_the_salt_alone(salt: str) -> None:
    one, same = (
        Tenant(name=name, salt=salt, cache_share=share).cache_quota for name, share in (("a", 0.1), ("b", 0.2))
    )
    other = Tenant(name="a", salt="secret", cache_share=0.1).cache_quota
    assert one is not None
    assert same is not None
    assert other is not None
    assert one.tag == same.tag != other.tag


def tokens_refused(limits: TenantLimits, tenant: Tenant, tokens: int, now_s: float) -> float:
    """Seconds that a prompt is told to wait, at the door or once it is counted; 0 where it is let in."""
    try:
        limits.enter(tenant, now_s)
    except Refused as refused:
        return refused.retry_after_s or 0.0
    try:
        limits.charge(tenant, tokens, now_s)
    except Refused as refused:
        return refused.retry_after_s or 0.0
    finally:
        limits.leave(tenant, now_s)
    return 0.0


def test_limits_that_change_hold_from_the_next_request_on() -> None:
    limits, free = TenantLimits(), Tenant(name="a")
    few, many = (Tenant(name="a", tokens_per_s=rate, burst_tokens=20) for rate in (1.0, 1000.0))
    assert tokens_refused(limits, free, 1000, 0.0) == 0
    assert tokens_refused(limits, few, 20, 0.0) == 0
    assert tokens_refused(limits, few, 20, 0.0) == 20.0
    assert tokens_refused(limits, many, 20, 0.0) == 1.0  # the least that is ever told
    assert tokens_refused(limits, many, 20, 0.02) == 0
    assert tokens_refused(limits, free, 1000, 0.02) == 0
    assert tokens_refused(limits, few, 20, 1.0) == 0
    limits.settle(few, 50, 1.0)
    assert tokens_refused(limits, Tenant(name="a", tokens_per_s=1.0, burst_tokens=5), 20, 1.0) == 55.0  # a debt stays


def test_a_request_that_ends_brings_back_no_limits_under_which_it_began() -> None:
    limits, free = TenantLimits(), Tenant(name="a")
    few, more = (Tenant(name="a", tokens_per_s=1.0, burst_tokens=burst) for burst in (20, 1000))
    assert tokens_refused(limits, few, 20, 0.0) == 0
    limits.settle(free, 5, 0.0)  # 5 are owed
    limits.settle(free, -5, 0.0)
    assert tokens_refused(limits, few, 20, 0.0) == 20.0
    assert tokens_refused(limits, more, 20, 0.0) == 20.0
    limits.settle(few, 1, 500.0)  # 499 are there, more than its burst would hold
    assert tokens_refused(limits, more, 499, 500.0) == 0
    assert tokens_refused(limits, more, 1, 500.0) == 499.0  # one like the last


def test_who_waits_as_long_as_the_door_said_is_let_in() -> None:
    limits, tenant = TenantLimits(), Tenant(name="a", tokens_per_s=5.0, burst_tokens=30)
    assert tokens_refused(limits, tenant, 20, 0.0) == 0
    limits.settle(tenant, 40, 0.0)  # its answer: 30 are owed
    wait_s = tokens_refused(limits, tenant, 20, 1.0)
    assert wait_s == pytest.approx(9.0)
    assert tokens_refused(limits, tenant, 20, 1.0 + wait_s) == 0


def test_a_smaller_burst_that_is_set_before_the_next_request_holds_of_what_was_there_no_more_than_it_can() -> None:
    bucket = TokenBucket(rate=1.0, burst=100.0, now_s=0.0)
    bucket.take(95.0, 0.0)
    bucket.limit(rate=1000.0, burst=10.0, now_s=3.0)  # 8 were there: what came in before came at the old rate
    assert bucket.level(3.0) == 8.0
    bucket.limit(rate=1.0, burst=4.0, now_s=3.0)
    bucket.limit(rate=1.0, burst=10.0, now_s=3.0)
    assert bucket.level(3.0) == 4.0


@pytest.mark.parametrize("rate", [1e-15, 5e-324])
def test_tokens_that_never_come_again_are_refused_in_words_that_both_doors_have(rate: float) -> None:
    limits, tenant = TenantLimits(), Tenant(name="a", tokens_per_s=rate, burst_tokens=100_000)
    limits.charge(tenant, 100_000, 0.0)
    with pytest.raises(Refused, match="100000 more may be had in") as raised:
        limits.enter(tenant, 1.0)
    details = rich_status(raised.value).details
    delay = error_details_pb2.RetryInfo()
    assert [each.Unpack(delay) for each in details] == [False, True]
    assert delay.retry_delay.ToSeconds() == int(refusal(raised.value, "r").headers["retry-after"]) > 10**8


@pytest.mark.parametrize("rate", [0.5, 1.0])
def test_a_tenant_of_whom_nothing_is_known_is_let_in_and_refused_by_a_single_token(rate: float) -> None:
    limits, tenant = TenantLimits(), Tenant(name="a", tokens_per_s=rate, burst_tokens=5)
    limits.enter(tenant, 0.0)
    limits.settle(tenant, 14, 0.0)  # 9 are owed
    with pytest.raises(Refused) as raised:
        limits.enter(tenant, 0.0)
    assert raised.value.retry_after_s == pytest.approx(10.0 / rate)
    limits.settle(tenant, -9, 0.0)
    with pytest.raises(Refused):
        limits.enter(tenant, 0.5 / rate)  # half a token is there
    limits.enter(tenant, 1.0 / rate)
