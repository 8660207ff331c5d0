"""Who asks, and what it may use. Plain values: the doors find out who a caller is, admission keeps the limits."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from pagewire.core.cache_quota import CacheQuota
from pagewire.core.sequence_spec import MAX_PRIORITY


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One customer of the router. A limit of 0 is none.

    `salt` separates its prefix cache: prompts with two salts never share KV. `max_concurrent` counts requests,
    `tokens_per_s` prompt and output tokens in the mean, of which `burst_tokens` may come at once. `cache_share` is the
    part of each pod's cache that it may keep against others. `priority` is the most urgent that its requests may have:
    they ask for theirs, and among tenants it is the operator who says who goes first. An operator may see what is going
    on in the whole cluster.
    """

    name: str = "anonymous"
    salt: str = ""
    max_concurrent: int = 0
    tokens_per_s: float = 0.0
    burst_tokens: int = 0
    cache_share: float = 0.0
    priority: int = -MAX_PRIORITY
    is_operator: bool = False

    @property
    def cache_quota(self) -> CacheQuota | None:
        """What its requests tell pods of it, under a tag that is made of its salt and is no name; None for no limit."""
        if not self.cache_share:
            return None
        tag = hashlib.blake2b(self.salt.encode(errors="surrogatepass"), digest_size=16, person=b"pagewire-quota")
        return CacheQuota(tag=tag.digest(), share=self.cache_share)


ANONYMOUS = Tenant()
OPERATOR = Tenant(name="(operator)", is_operator=True)  # whoever has the operator's key; no tenant can have that name
