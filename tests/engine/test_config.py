"""An engine's settings are refused by name where they are none: of another type, or a number that nothing holds."""

from __future__ import annotations

import pytest

from pagewire.core.messages import Role
from pagewire.engine.config import MAX_THREADS, EngineConfig
from pagewire.engine.scheduling_policy import PolicyName


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("chunk_size", "12", "chunk_size must be of type int, is '12'"),
        ("block_size", "16", "block_size must be of type int, is '16'"),
        ("max_num_seqs", 2.5, "max_num_seqs must be of type int, is 2.5"),
        ("threads", True, "threads must be of type int, is True"),
        ("deterministic", "yes", "deterministic must be of type bool, is 'yes'"),
        ("brownout", 1, "brownout must be of type bool, is 1"),
        ("step_target_s", "1", "step_target_s must be of type float, is '1'"),
        ("dtype", None, "dtype must be of type str, is None"),
        ("step_target_s", float("nan"), "step_target_s must not be negative, is nan"),
        ("step_target_s", float("inf"), "step_target_s must not be negative, is inf"),
        ("max_model_len", 1, "max_model_len must be 0 or at least 2, for a prompt and what follows it, is 1"),
        ("threads", MAX_THREADS + 1, f"threads must be at most {MAX_THREADS}, is {MAX_THREADS + 1}"),
    ],
)
def test_what_is_no_setting_is_refused_by_name(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EngineConfig(model="m", role=Role.COLOCATED, **{name: value})  # type: ignore[arg-type]


def test_a_whole_number_of_seconds_is_one() -> None:
    made = EngineConfig(
        model="m", role=Role.COLOCATED, step_target_s=1, threads=MAX_THREADS, scheduling=PolicyName.SRPT
    )
    assert EngineConfig.from_json(made.to_json()) == made
