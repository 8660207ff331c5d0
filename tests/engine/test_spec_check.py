"""What may run in an engine at all: each bound just kept, and just broken with the field that is named for it."""

from __future__ import annotations

from typing import Any

import pytest
from engine_runs import greedy, spec
from lone_sequences import limits

from pagewire.core.cache_quota import CacheQuota
from pagewire.core.errors import InvalidRequest
from pagewire.core.sequence_spec import Branch, branches
from pagewire.engine.spec_check import check
from pagewire.router.dispatch import SIZES

Case = dict[str, Any]


def refused(
    length: int = 6, max_tokens: int = 20, *, tokens: Any = None, sampling: Case | None = None,
    bounds: Case | None = None, num_blocks: int = 100, num_slots: int = 0, begins_only: bool = False,
    finds_equals: bool = True, **changes: Any,
) -> str | None:  # fmt: skip
    """Return the field that a request is refused for, None where it may run."""
    asked = greedy(max_tokens, **(sampling or {}))
    request = spec("r", [1] * length if tokens is None else tokens, asked, **changes)
    try:
        check(
            request, limits(**(bounds or {})), num_blocks, num_slots, begins_only=begins_only, finds_equals=finds_equals
        )
    except InvalidRequest as error:
        return error.field
    return None


def begun(*lengths: int) -> tuple[Branch, ...]:
    """Return branches with so many tokens of output."""
    return tuple(Branch(index=number, output=(1,) * length) for number, length in enumerate(lengths, 1))


@pytest.mark.parametrize(
    ("kept", "broken", "field"),
    [
        pytest.param({"length": 1}, {"length": 0}, "prompt", id="a token at least"),
        pytest.param(
            {"adapter": "a", "bounds": {"adapters": ("a",)}},
            {"adapter": "b", "bounds": {"adapters": ("a",)}},
            "adapter",
            id="an adapter that is there",
        ),
        pytest.param({"length": 39}, {"length": 40}, "prompt", id="room for an answer"),
        pytest.param(
            {"length": 30, "output": (1,) * 9}, {"length": 30, "output": (1,) * 10}, "prompt", id="room behind output"
        ),
        pytest.param({"length": 11, "num_blocks": 3}, {"length": 12, "num_blocks": 3}, "prompt", id="one more fits"),
        pytest.param(
            {"length": 30, "num_blocks": 4, "bounds": {"window": 6}},
            {"length": 30, "num_blocks": 3, "bounds": {"window": 6}},
            "prompt",
            id="the window and a chunk fit",
        ),
        pytest.param({"tokens": [0]}, {"tokens": [-1, 5]}, "prompt", id="no token below 0"),
        pytest.param({"tokens": [99]}, {"tokens": [5, 100]}, "prompt", id="no token beyond the vocabulary"),
        pytest.param({"output": (99,)}, {"output": (5, 100)}, "prompt", id="none in the output so far"),
        pytest.param(
            {"branches": (Branch(index=1, output=(99,)),), "output": (1,)},
            {"branches": (Branch(index=1, output=(100,)),), "output": (1,)},
            "prompt",
            id="nor in a branch's",
        ),
        pytest.param({"priority": 100}, {"priority": 101}, "priority", id="priority"),
        pytest.param({"priority": -100}, {"priority": -101}, "priority", id="priority below 0"),
        pytest.param(
            {"max_tokens": 4, "output": (1,) * 3},
            {"max_tokens": 4, "output": (1,) * 4},
            "max_tokens",
            id="a token left",
        ),
        pytest.param(
            {"sampling": {"allowed_token_ids": (99,)}},
            {"sampling": {"allowed_token_ids": (100,)}},
            "allowed_token_ids",
            id="sampling",
        ),
        *(
            pytest.param(
                {"cache_quota": CacheQuota(tag=tag, share=share)},
                {"cache_quota": CacheQuota(tag=bad_tag, share=bad_share)},
                "cache_quota",
                id=f"quota {len(bad_tag)} {bad_share}",
            )
            for tag, share, bad_tag, bad_share in (
                (b"t", 0.0, b"", 0.0),
                (b"t" * 32, 1.0, b"t" * 33, 1.0),
                (b"t", 0.0, b"t", -0.01),
                (b"t", 1.0, b"t", 1.01),
            )
        ),
    ],
)
def test_what_a_request_may_be(kept: Case, broken: Case, field: str) -> None:
    assert (refused(**kept), refused(**broken)) == (None, field)


@pytest.mark.parametrize(
    ("kept", "broken", "field"),
    [
        pytest.param({"branches": branches(4)}, {"branches": branches(5)}, "n", id="a place each"),
        # 6 tokens: one full block for all, and one each for what is behind it
        pytest.param(
            {"branches": branches(3), "num_blocks": 4}, {"branches": branches(3), "num_blocks": 3}, "n", id="blocks"
        ),
        pytest.param(
            {"branches": branches(3), "num_blocks": 3, "begins_only": True},
            {"branches": branches(3), "num_blocks": 1, "begins_only": True},
            "prompt",
            id="blocks of a prompt alone",
        ),
        pytest.param(
            {"branches": begun(1), "output": (1,)},
            {"branches": begun(1), "output": (1,), "begins_only": True},
            "n",
            id="what has begun decodes",
        ),
        pytest.param({"branches": (Branch(index=1),)}, {"branches": (Branch(index=0),)}, "n", id="indices differ"),
        pytest.param(
            {"branches": begun(2, 2), "output": (1,)}, {"branches": begun(2, 0), "output": (1,)}, "n", id="all"
        ),
        pytest.param({"branches": begun(0)}, {"branches": begun(1)}, "n", id="or none has begun"),
        pytest.param(
            {"branches": begun(1, 3), "output": (1,), "max_tokens": 4},
            {"branches": begun(1, 3), "output": (1,), "max_tokens": 3},
            "max_tokens",
            id="a token left for the longest",
        ),
        pytest.param(
            {"branches": begun(33, 1), "output": (1,), "max_tokens": 50},
            {"branches": begun(34, 1), "output": (1,), "max_tokens": 50},
            "max_tokens",
            id="room for the longest",
        ),
    ],
)
def test_what_several_sequences_may_be(kept: Case, broken: Case, field: str) -> None:
    assert (refused(**kept), refused(**broken)) == (None, field)


def beams(width: int = 2, **changes: Any) -> Case:
    sampling = {"use_beam_search": True, "beam_width": width}
    return {"sampling": sampling, "branches": branches(width), "max_tokens": 5, **changes}


@pytest.mark.parametrize(
    ("kept", "broken", "field"),
    [
        pytest.param(beams(), beams(begins_only=True), "use_beam_search", id="where it decodes"),
        pytest.param(beams(), beams(output=(1,), branches=begun(1)), "use_beam_search", id="from its beginning"),
        pytest.param(beams(), beams(branches=(Branch(index=2),)), "use_beam_search", id="indices from 0"),
        pytest.param(beams(), beams(branches=branches(3)), "use_beam_search", id="as many as are wide"),
        pytest.param(beams(), beams(index=1, branches=(Branch(index=0),)), "use_beam_search", id="begun as index 0"),
        pytest.param(beams(4), beams(5), "beam_width", id="a place each"),
        # 6 + 5 tokens: a full block for both, two more each, and one each to spare
        pytest.param(beams(num_blocks=7), beams(num_blocks=6), "max_tokens", id="blocks to the end"),
        # 6 + 5 tokens: three each, and one each to spare
        pytest.param(
            beams(num_blocks=8, finds_equals=False), beams(num_blocks=7, finds_equals=False), "max_tokens",
            id="blocks of their own to the end",
        ),
        pytest.param(
            beams(num_blocks=8, finds_equals=False), beams(num_blocks=5, finds_equals=False), "prompt",
            id="blocks of their own for the prompt",
        ),
        # 7 + 1 tokens fill two blocks each, 7 + 2 take three; 8 + 1 take three
        pytest.param(
            beams(length=7, num_blocks=8, finds_equals=False), beams(length=7, num_blocks=6, finds_equals=False),
            "max_tokens", id="blocks of their own for one token more",
        ),
        pytest.param(
            beams(length=8, num_blocks=10, finds_equals=False), beams(length=8, num_blocks=7, finds_equals=False),
            "prompt", id="blocks of their own for a token behind full ones",
        ),
        # 6 + 1 tokens: a full block for both, one more each, and one each to spare
        pytest.param(beams(num_blocks=7), beams(num_blocks=4), "prompt", id="blocks for the prompt"),
        pytest.param(beams(num_blocks=7), beams(num_blocks=5), "max_tokens", id="blocks for the prompt alone"),
        pytest.param(
            beams(num_blocks=5, max_tokens=20, bounds={"max_model_len": 8}),
            beams(num_blocks=6, max_tokens=20, bounds={"max_model_len": 9}),
            "max_tokens",
            id="blocks to the end of the model",
        ),
    ],
)  # fmt: skip
def test_what_beams_may_be(kept: Case, broken: Case, field: str) -> None:
    assert (refused(**kept), refused(**broken)) == (None, field)


def spilling(length: int, max_tokens: int, num_blocks: int, num_slots: int, **bounds: Any) -> Case:
    case = {"length": length, "max_tokens": max_tokens, "num_blocks": num_blocks, "num_slots": num_slots}
    return {**case, "bounds": {"spills": True, **bounds}}


@pytest.mark.parametrize(
    ("kept", "broken"),
    [
        pytest.param(spilling(4, 4, 2, 0), spilling(4, 5, 2, 9), id="a chunk takes 3 blocks"),
        pytest.param(spilling(4, 9, 3, 1), spilling(4, 9, 3, 0), id="host memory holds the rest"),
        pytest.param(spilling(16, 4, 3, 2), spilling(16, 5, 3, 2), id="to the last token"),
        pytest.param(
            spilling(4, 90, 3, 0, max_model_len=12), spilling(4, 90, 3, 0, max_model_len=13), id="or to the model's end"
        ),
    ],
)
def test_what_is_larger_than_the_pool_may_be_no_larger_than_both_memories(kept: Case, broken: Case) -> None:
    assert (refused(**kept), refused(**broken)) == (None, "prompt")


@pytest.mark.parametrize(
    "case",
    [
        {"length": 12, "num_blocks": 3},
        {"length": 30, "num_blocks": 4, "branches": begun(0, 0)},
        {"length": 6, "num_blocks": 1, "num_slots": 1, "bounds": {"spills": True}},
    ],
)
def test_a_router_knows_what_is_too_much_for_a_pool_by_what_is_named(case: Case) -> None:
    assert refused(**case) in SIZES
    assert refused(**(case | {"num_blocks": 100})) is None
