"""A request that was taken in: everything in it is within bounds."""

from __future__ import annotations

from dataclasses import dataclass

from pagewire.core.sampling import SamplingParams
from pagewire.router.tenants import ANONYMOUS, Tenant
from pagewire.text.text_stream import PLAIN, TextRules


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An admitted request: everything in it is within bounds. `request_id` is the caller's word, for logs only.

    `echo` is the prompt's text where the caller wants it back, all that is told where it `is_score`. `adapter` is the
    adapter that was named as the model, "" for the model itself.
    """

    request_id: str
    tenant: Tenant = ANONYMOUS
    prompt: tuple[int, ...]
    sampling: SamplingParams
    cache_salt: str
    timeout_s: float
    echo: str | None = None
    is_score: bool = False
    priority: int = 0
    text_rules: TextRules = PLAIN
    explain: bool = False
    adapter: str = ""
