"""What a pod says of itself where routers look for pods.

A value and its stored form; knows no Redis. Invariants: what `from_json` returns has every field, each of its type;
what a newer release says besides is overlooked, so that old routers find its pods.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagewire.core.fingerprint import Fingerprint
from pagewire.core.index_member import MAX_INDEX_ID
from pagewire.core.messages import Role

MAX_REGISTRATION_BYTES = 16_384
MAX_NUMBER = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a pod says of itself. `index_id` is what it goes by in the prefix index, 0 for a pod that is not in it."""

    pod_id: str
    incarnation: str
    role: Role
    address: str
    metrics: str
    fingerprint: Fingerprint
    index_id: int = 0

    @property
    def member(self) -> str:
        """Names this incarnation of the pod."""
        return f"{self.pod_id}@{self.incarnation}"

    def to_json(self) -> str:
        """Return the form that is stored."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Registration:
        """Parse what Redis held; raises ValueError on anything that is no registration."""
        if len(text) > MAX_REGISTRATION_BYTES:
            raise ValueError(f"a registration of {len(text)} bytes")
        try:
            raw: dict[str, Any] = json.loads(text)
            fingerprint = Fingerprint(**_known(Fingerprint, raw["fingerprint"]))
            registration = cls(**{**_known(cls, raw), "role": Role(raw["role"]), "fingerprint": fingerprint})
        except (TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"not a registration: {error}") from error
        _check(registration)
        _check(fingerprint)
        if not all("=" in each for each in fingerprint.adapters.split()):
            raise ValueError("not a registration: adapters are no names and digests")
        if registration.index_id > MAX_INDEX_ID:
            raise ValueError("not a registration: index_id is no number of the index")
        return registration


def _known(kind: type[Registration | Fingerprint], raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that `kind` has a field for."""
    return {field.name: raw[field.name] for field in dataclasses.fields(kind) if field.name in raw}


def _check(value: Registration | Fingerprint) -> None:
    """Raise ValueError unless a log can show the texts and a message can hold the numbers."""
    for field in dataclasses.fields(value):
        found = getattr(value, field.name)
        if isinstance(found, Role | Fingerprint):
            continue
        # Annotations are texts here, as in `core/fingerprint.py`.
        is_right = (
            type(found) is int and 0 <= found <= MAX_NUMBER
            if field.type == "int"
            else isinstance(found, str) and found.isprintable()
        )
        if not is_right:
            raise ValueError(f"not a registration: {field.name} is {found!r:.100}")
