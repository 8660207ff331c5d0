"""API keys and whose they are: a key file's text, and what a caller's key says of it. Pure.

    [tenants.acme]
    keys = ["3f9c2a71:5d0b…"]    # id and hash of each key, as `pagewire keys create` prints them
    max_concurrent = 8           # all from here on are optional
    tokens_per_s = 2000
    burst_tokens = 20000
    cache_quota = 0.2
    priority = -10               # the most urgent that its requests may have; 0 where it is not given
    operator = true
    salt = "…"                   # made of the cluster's secret and the name where it is not given

A key is `pw_ID_SECRET`: 32 bits by which its hash is found, which are no secret, and 256 that are. Its hash is a plain
blake2b: a slow one would make a guess dearer, but nobody guesses 256 random bits, and every request would pay for it.

Invariants: no key is kept, only hashes; every hash under an id is compared, each in a time that does not tell how much
of it was right; no two tenants have one salt, so that none reads another's cache.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagewire.core.block_hash import tenant_salt
from pagewire.core.documents import parse_toml
from pagewire.core.sequence_spec import MAX_PRIORITY
from pagewire.router.tenants import Tenant

PREFIX = "pw"
ID_BYTES = 4
KEY_BYTES = ID_BYTES + 32
MAX_KEY_CHARS = 256  # of what a caller sends; what is longer is no key of ours
_HASH = re.compile(r"[0-9a-f]{8}:[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LIMITS: dict[str, tuple[tuple[type, ...], float]] = {  # what a limit is, and below or at what it stays
    "max_concurrent": ((int,), sys.float_info.max),
    "tokens_per_s": ((int, float), sys.float_info.max),
    "burst_tokens": ((int,), sys.float_info.max),
    "cache_quota": ((int, float), 1.0),
}
_KNOWN = ("keys", "salt", "operator", "priority", *_LIMITS)


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key, to be given away once, and the line that stands for it in a key file."""

    key: str
    line: str

    @classmethod
    def of(cls, drawn: bytes) -> NewKey:
        """Write KEY_BYTES random bytes as a key; raises ValueError on fewer or more."""
        if len(drawn) != KEY_BYTES:
            raise ValueError(f"a key is made of {KEY_BYTES} random bytes, not {len(drawn)}")
        key_id = drawn[:ID_BYTES].hex()
        key = f"{PREFIX}_{key_id}_{base64.urlsafe_b64encode(drawn[ID_BYTES:]).rstrip(b'=').decode()}"
        return cls(key=key, line=f"{key_id}:{_digest(key)}")


class KeyRing:
    """All keys of a router, by id."""

    def __init__(self, tenants: Mapping[str, tuple[Tenant, tuple[str, ...]]]) -> None:
        self._by_id: defaultdict[str, list[tuple[str, Tenant]]] = defaultdict(list)
        for tenant, lines in tenants.values():
            for line in lines:
                key_id, _, digest = line.partition(":")
                self._by_id[key_id].append((digest, tenant))

    def __len__(self) -> int:
        """Return how many keys there are."""
        return sum(map(len, self._by_id.values()))

    def tenant(self, key: str) -> Tenant | None:
        """Return whose key this is, None for nobody's."""
        if len(key) > MAX_KEY_CHARS:
            return None
        digest = _digest(key)
        found: Tenant | None = None
        for known, tenant in self._by_id.get(_id(key), ()):
            if hmac.compare_digest(known, digest):
                found = tenant
        return found


def read(text: str, *, secret: bytes) -> KeyRing:
    """Return the keys of a key file; `secret` is the cluster's. Raises ValueError, without showing a hash or a salt."""
    table = parse_toml(text, "the key file")
    if extra := set(table) - {"tenants"}:
        raise ValueError(f"a key file has tenants alone, not {', '.join(sorted(extra))}")
    rows = table.get("tenants", {})
    if not isinstance(rows, dict):
        raise ValueError("tenants is a table: [tenants.NAME]")
    tenants = {name: _tenant(name, row, secret) for name, row in rows.items()}
    owners: dict[str, str] = {}
    for name, (tenant, lines) in tenants.items():
        for what, told in (("the salt", tenant.salt), *(("a key", line) for line in lines)):
            if (owner := owners.setdefault(told, name)) != name:
                raise ValueError(f"{what} of tenant {name} is that of {owner} too")
    return KeyRing(tenants)


def _tenant(name: str, row: Any, secret: bytes) -> tuple[Tenant, tuple[str, ...]]:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"a tenant's name has 1 to 64 letters, digits, dots, dashes and underscores, not {name[:80]!r}"
        )
    if not isinstance(row, dict):
        raise ValueError(f"tenant {name} is a table: [tenants.{name}]")
    if extra := set(row) - {*_KNOWN}:
        raise ValueError(f"tenant {name} has no {', '.join(sorted(extra))}; known are {', '.join(_KNOWN)}")
    lines = row.get("keys", [])
    if not (isinstance(lines, list) and all(isinstance(line, str) and _HASH.fullmatch(line) for line in lines)):
        raise ValueError(f"keys of tenant {name} are lines as `pagewire keys create` prints them, in a list")
    for field, (kinds, most) in _LIMITS.items():
        value = row.get(field, 0)
        if type(value) not in kinds or not 0 <= value <= most:
            bound = " and at most 1" if most == 1 else ""
            raise ValueError(f"{field} of tenant {name} is a number, not negative{bound}, 0 for no limit")
    if row.get("burst_tokens") and not row.get("tokens_per_s"):  # it reads as a limit, and would be none
        raise ValueError(f"burst_tokens of tenant {name} limits nothing without tokens_per_s")
    priority = row.get("priority", 0)
    if type(priority) is not int or not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise ValueError(f"priority of tenant {name} is a whole number between {-MAX_PRIORITY} and {MAX_PRIORITY}")
    is_operator = row.get("operator", False)
    if not isinstance(is_operator, bool):
        raise ValueError(f"operator of tenant {name} is true or false")
    salt = row.get("salt", tenant_salt(name, secret))
    if not (isinstance(salt, str) and 1 <= len(salt) <= 1024):
        raise ValueError(f"salt of tenant {name} is a text of 1 to 1024 characters")
    tenant = Tenant(
        name=name,
        salt=salt,
        max_concurrent=row.get("max_concurrent", 0),
        tokens_per_s=float(row.get("tokens_per_s", 0)),
        burst_tokens=row.get("burst_tokens", 0),
        cache_share=float(row.get("cache_quota", 0)),
        priority=priority,
        is_operator=is_operator,
    )
    return tenant, tuple(lines)


def _id(key: str) -> str:
    return key[len(PREFIX) + 1 : len(PREFIX) + 1 + 2 * ID_BYTES]


def _digest(key: str) -> str:
    return hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=32, person=b"pagewire-api-key").hexdigest()
