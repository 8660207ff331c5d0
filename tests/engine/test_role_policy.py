"""What a role means for a scheduler: who hands off, and that a role without an engine has no policy."""

from __future__ import annotations

import pytest

from pagewire.core.messages import Role
from pagewire.engine.role_policy import ROLES, policy_of


def test_only_who_prefills_for_others_hands_off() -> None:
    assert set(ROLES) == {Role.PREFILL, Role.DECODE, Role.COLOCATED}
    assert [role for role in ROLES if policy_of(role).hands_off] == [Role.PREFILL]


def test_a_role_without_an_engine_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(ValueError, match=r"router has no engine; .*prefill, decode, colocated"):
        policy_of(Role.ROUTER)
