"""What a pod's role means for its scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from pagewire.core.messages import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePolicy:
    """`hands_off`: a sequence leaves with its first token, its blocks stay held until released."""

    hands_off: bool


_POLICIES = {
    Role.PREFILL: RolePolicy(hands_off=True),
    Role.DECODE: RolePolicy(hands_off=False),
    Role.COLOCATED: RolePolicy(hands_off=False),
}

ROLES = tuple(_POLICIES)
"""Those that a pod can have."""


def policy_of(role: Role) -> RolePolicy:
    """Return the policy of a pod's role; raises ValueError for a role that has no engine."""
    policy = _POLICIES.get(role)
    if policy is None:
        raise ValueError(f"a {role} has no engine; the roles that do are {', '.join(_POLICIES)}")
    return policy
