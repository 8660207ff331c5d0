"""What each tenant has in use: its requests, and the tokens of its bucket.

Pure: time is a parameter. Knows tenants by name and nothing of their requests. Prompts are charged before they run, all
of one request at once, output when it is over, so a bucket may go into debt by what one answer costs; until the debt is
paid nothing is charged. Invariants: every `enter` that returned is followed by exactly one `leave`; no tenant has more
requests than it may; over any time t what a tenant is charged at the door is at most burst + rate x t, and the prompts
of one request more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pagewire.router.drain_rate import DrainRate, bounded_s
from pagewire.router.refusals import Reason, Refused
from pagewire.router.tenants import Tenant

NEVER_S = 1e9  # some thirty years: of a rate that is next to nothing more could not be said over gRPC
SWEEP_AT = 1024  # accounts, beyond which those that hold nothing are forgotten


class TokenBucket:
    """Tokens that come in at a rate up to a burst, and may be owed."""

    def __init__(self, *, rate: float, burst: float, now_s: float) -> None:
        self._rate = rate
        self._burst = burst
        self._level = burst
        self._at_s = now_s

    def limit(self, *, rate: float, burst: float, now_s: float) -> None:
        """Have other limits from now on; what is there or owed stays, but for what the new burst does not hold."""
        self._level = min(burst, self.level(now_s))
        self._rate, self._burst = rate, burst

    def level(self, now_s: float) -> float:
        """Return the tokens that are there now; less than 0 is owed."""
        self._level = min(self._burst, self._level + (now_s - self._at_s) * self._rate)
        self._at_s = now_s
        return self._level

    def is_full(self, now_s: float) -> bool:
        """True when it is as if nothing had ever been taken."""
        return self.level(now_s) >= self._burst

    def wait_s(self, tokens: float, now_s: float) -> float:
        """Return in how many seconds `tokens` may be taken; what is larger than the burst needs all of it."""
        return max(0.0, min(tokens, self._burst) - self.level(now_s)) / self._rate

    def take(self, tokens: float, now_s: float) -> None:
        """Take tokens whether they are there or not; a negative number gives them back."""
        self._level = min(self._burst, self.level(now_s) - tokens)


@dataclass(slots=True)
class _Account:
    """One tenant's use; `limits` are the rate and the burst that its bucket has, 0 where it has none."""

    bucket: TokenBucket | None = None
    limits: tuple[float, float] = (0.0, 0.0)
    active: int = 0
    unread: int = 0  # requests whose heads have come, and get a place before those that come later
    last_prompt: int = 1  # tokens
    drain: DrainRate = field(default_factory=DrainRate)

    def is_untouched(self, now_s: float) -> bool:
        return self.active == self.unread == 0 and (self.bucket is None or self.bucket.is_full(now_s))


class TenantLimits:
    """Keeps tenants within their limits, which are those that each comes with: they may change at any time."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self._sweep_at = SWEEP_AT

    @property
    def num_accounts(self) -> int:
        """Tenants that are remembered."""
        return len(self._accounts)

    def active(self, tenant: Tenant) -> int:
        """Requests of a tenant that are in."""
        account = self._accounts.get(tenant.name)
        return account.active if account is not None else 0

    def check(self, tenant: Tenant, now_s: float) -> None:
        """Raise Refused when the tenant has as many requests in, or to be read, as it may, or owes tokens."""
        account = self._account(tenant, now_s)
        self._check(tenant, account, account.unread, now_s)

    def come(self, tenant: Tenant, now_s: float) -> None:
        """Count a request that is to be read, until `is_read`; raises Refused where as many are as may be in."""
        account = self._account(tenant, now_s)
        if 0 < tenant.max_concurrent <= account.unread:
            message = f"{account.unread} requests of this tenant are to be read, which is its bound"
            raise Refused(Reason.TENANT_CONCURRENCY, message, retry_after_s=account.drain.retry_after_s(1, now_s))
        account.unread += 1

    def is_read(self, tenant: Tenant) -> None:
        """One that came is not waited for any more, whatever becomes of it."""
        self._accounts[tenant.name].unread -= 1

    def enter(self, tenant: Tenant, now_s: float) -> None:
        """Count a request in; raises Refused when the tenant has as many in as it may, or owes tokens."""
        account = self._account(tenant, now_s)
        self._check(tenant, account, 0, now_s)
        account.active += 1
        if account.active == tenant.max_concurrent:
            account.drain.full(now_s)

    def leave(self, tenant: Tenant, now_s: float) -> None:
        """Count a request out."""
        account = self._accounts[tenant.name]
        if account.active == tenant.max_concurrent:
            account.drain.freed(now_s, is_full=False)
        account.active -= 1

    def charge(self, tenant: Tenant, tokens: int, now_s: float) -> None:
        """Take the tokens of a request's prompts; raises Refused, with the seconds until they are there, before."""
        account = self._account(tenant, now_s)
        account.last_prompt = tokens
        self._check_tokens(account, tokens, now_s, wanted=tokens)
        self.settle(tenant, tokens, now_s)

    def settle(self, tenant: Tenant, tokens: int, now_s: float) -> None:
        """Take what was used already; a negative number gives back what was charged and not used."""
        # One that ends may have begun under limits that are no longer the tenant's: it brings none along.
        account = self._accounts.get(tenant.name) or self._account(tenant, now_s)
        if account.bucket is not None:
            account.bucket.take(tokens, now_s)

    def _check(self, tenant: Tenant, account: _Account, ahead: int, now_s: float) -> None:
        if 0 < tenant.max_concurrent <= account.active + ahead:
            retry_after_s = account.drain.retry_after_s(1, now_s)
            others = f" and {ahead} are to be read" if ahead else ""
            message = f"{account.active} requests of this tenant are running{others}, which is its bound"
            raise Refused(Reason.TENANT_CONCURRENCY, message, retry_after_s=retry_after_s)
        # Before anybody counts the prompt's tokens: who has none is told when there are enough for one like its last.
        self._check_tokens(account, 1, now_s, wanted=account.last_prompt)

    def _check_tokens(self, account: _Account, tokens: int, now_s: float, *, wanted: int) -> None:
        if account.bucket is not None and account.bucket.wait_s(tokens, now_s) > 0:
            wait_s = account.bucket.wait_s(wanted, now_s)
            # Told in full, however long: coming back before would be in vain.
            retry_after_s = min(NEVER_S, max(bounded_s(wait_s), wait_s))
            message = f"this tenant has used its tokens; {wanted} more may be had in {retry_after_s:.1f} s"
            raise Refused(Reason.TENANT_TOKENS, message, retry_after_s=retry_after_s)

    def _account(self, tenant: Tenant, now_s: float) -> _Account:
        account = self._accounts.get(tenant.name)
        if account is None:
            self._sweep(now_s)
            account = self._accounts[tenant.name] = _Account()
        rate = tenant.tokens_per_s
        limits = rate, tenant.burst_tokens or rate  # of one second, where nothing else is said
        if limits != account.limits:
            account.limits = limits
            if rate <= 0:
                account.bucket = None
            elif account.bucket is None:
                account.bucket = TokenBucket(rate=rate, burst=limits[1], now_s=now_s)
            else:
                account.bucket.limit(rate=rate, burst=limits[1], now_s=now_s)
        return account

    def _sweep(self, now_s: float) -> None:
        if len(self._accounts) >= self._sweep_at:
            idle = [name for name, account in self._accounts.items() if account.is_untouched(now_s)]
            for name in idle:
                del self._accounts[name]
            self._sweep_at = max(SWEEP_AT, 2 * len(self._accounts))
