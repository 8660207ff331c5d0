"""What an engine may go by in each role, from its configuration, its model and its pool: or why it cannot.

Knows sizes; reads no weights. Invariant: a role that is had has room for one sequence of full length, in the pool or by
what it frees and spills.
"""

from __future__ import annotations

from collections.abc import Callable

from pagewire.core.engine_messages import RefusedRole
from pagewire.core.messages import Role
from pagewire.engine.config import EngineConfig
from pagewire.engine.kv_cache import KVCache
from pagewire.engine.limits import Limits
from pagewire.engine.model.architecture import Architecture
from pagewire.engine.role_policy import ROLES, policy_of
from pagewire.engine.role_terms import RoleTerms


def terms_of(
    role: Role,
    config: EngineConfig,
    architecture: Architecture,
    cache: KVCache,
    max_model_len: int,
    num_slots: int,
    eos_token_ids: frozenset[int],
) -> RoleTerms:
    """Return what the engine goes by in a role; raises ValueError for one that it cannot have."""
    policy, most = policy_of(role), config.max_num_batched_tokens
    window, spills, why_not = _reach(role, config, architecture, cache, num_slots)
    if not window:
        cache.sizing.require(max_model_len, num_slots if spills else 0, why_not)
    limits = Limits(
        max_num_batched_tokens=most,
        max_num_seqs=config.max_num_seqs,
        chunk_size=config.chunk_size,
        block_size=config.block_size,
        max_model_len=max_model_len,
        vocab_size=architecture.vocab_size,
        eos_token_ids=eos_token_ids,
        window=window,
        spills=spills,
        adapters=config.adapter_names,
    )
    # Where nothing decodes there is nobody to spare a long step.
    return RoleTerms(
        policy=policy, limits=limits, least_prefill=most if policy.hands_off else min(config.block_size, most)
    )


def roles_of(terms_of: Callable[[Role], RoleTerms]) -> tuple[dict[Role, RoleTerms], tuple[RefusedRole, ...]]:
    """Return the roles that can be had, and those that cannot."""
    roles: dict[Role, RoleTerms] = {}
    refused: list[RefusedRole] = []
    for role in ROLES:
        try:
            roles[role] = terms_of(role)
        except ValueError as error:
            refused.append(RefusedRole(role=role, reason=str(error)))
    return roles, tuple(refused)


def _reach(
    role: Role, config: EngineConfig, architecture: Architecture, cache: KVCache, num_slots: int
) -> tuple[int, bool, str]:
    """Return what lets a sequence be larger than the pool: the window that frees blocks, whether it spills, or why not.

    The window is the model's, where it is of use, else 0. The last is "" or a clause for whoever is refused.
    """
    if policy_of(role).hands_off:
        return 0, False, f"a {role} pod ships sequences whole"
    reasons = []
    chunk = f"a chunk_size of {config.chunk_size}"
    if architecture.window:
        needed = cache.layout.num_blocks(architecture.window + config.chunk_size) + 1
        if needed < cache.num_blocks:
            return architecture.window, False, ""
        reasons.append(
            f"the model's window of {architecture.window} and {chunk} need {needed + 1} blocks of {cache.num_blocks}"
        )
    needed = cache.layout.num_blocks(config.chunk_size) + 1
    if not num_slots:
        reasons.append(f"host_kv_memory_bytes {config.host_kv_memory_bytes} holds no block to spill")
    elif config.deterministic:
        reasons.append("nothing spills to host memory where deterministic is set, for that changes sums")
    elif config.tensor_parallel > 1:
        reasons.append("nothing spills to host memory where several ranks compute, for it is one rank's")
    elif needed > cache.num_blocks:
        reasons.append(f"nothing spills to host memory where {chunk} needs {needed} blocks of {cache.num_blocks}")
    else:
        return 0, True, "; ".join(reasons)
    return 0, False, "; ".join(reasons)
