"""What two processes must agree on before they exchange a single token or block."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Model, tokenizer, KV layout and hash version. The wire version is negotiated apart, so that pods can be upgraded
    one at a time.

    `arithmetic` names the code that computes, where pods promise equal bits (`--deterministic`), else it is empty.
    `adapters` are those that requests may name, "NAME=DIGEST" of each, in the order of names, with spaces between them.
    `kv_layout` is `kv_fingerprint` for people, with the order of the pool besides: no part of the comparison.
    """

    model_name: str
    model_digest: str
    tokenizer_digest: str
    kv_fingerprint: str
    kv_layout: str = field(compare=False)
    block_size: int
    hash_version: int
    max_model_len: int
    arithmetic: str = ""
    adapters: str = ""

    @property
    def adapter_names(self) -> tuple[str, ...]:
        """The names of all adapters."""
        return tuple(each.partition("=")[0] for each in self.adapters.split())

    def adapter_digest(self, name: str) -> str:
        """Return the digest of an adapter that there is, "" for the name of none, ""."""
        return dict(each.split("=", 1) for each in self.adapters.split())[name] if name else ""

    def diff(self, other: Fingerprint) -> str:
        """Return "field: ours / theirs" for every difference, "" when the two may be paired."""
        return "; ".join(
            f"{f.name}: {getattr(self, f.name)} / {getattr(other, f.name)}"
            for f in dataclasses.fields(self)
            if getattr(self, f.name) != getattr(other, f.name)
            and (f.compare or self.kv_fingerprint != other.kv_fingerprint)
        )


def tokenizer_digest(tokenizer_json: bytes) -> str:
    """Return what names a tokenizer: 16 hex digits over its `tokenizer.json`, which fixes text to ids and back."""
    return hashlib.blake2b(tokenizer_json, digest_size=8).hexdigest()
