"""What an engine is asked to run: how many streams, by which indices, and under how long a name."""

from __future__ import annotations

import pytest

from pagewire.core.block_hash import root_hash
from pagewire.core.errors import InvalidRequest
from pagewire.core.sampling import SamplingParams
from pagewire.core.sequence_spec import Branch, SequenceSpec, branches, check_id


@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_request_of_n_answers_has_their_indices(n: int) -> None:
    root = root_hash(model_digest="m", kv_fingerprint="k")
    spec = SequenceSpec(request_id="r", tokens=(1,), sampling=SamplingParams(n=n), root=root, branches=branches(n))
    assert spec.num_sequences == n
    assert [spec.index, *(branch.index for branch in spec.branches)] == list(range(n))
    assert all(branch == Branch(index=branch.index, output=()) for branch in spec.branches)
    assert spec.priority == 0, "neither before others nor after them"


def test_a_name_has_1024_characters_at_most() -> None:
    check_id("x" * 1024)
    with pytest.raises(InvalidRequest, match="a name of 1025 characters; at most 1024") as caught:
        check_id("x" * 1025)
    assert caught.value.field == "request_id"
