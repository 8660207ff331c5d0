"""Log probabilities are log_softmax in float64; ranks and the likeliest tokens follow it, ties by the lower id."""

from __future__ import annotations

import pytest
import torch

from pagewire.kernels.logprobs import logprobs


@pytest.mark.parametrize("num_top", [0, 1, 20])
@pytest.mark.parametrize("is_coarse", [False, True], ids=["fp32", "many-ties"])
def test_they_are_log_softmax(num_top: int, is_coarse: bool) -> None:
    torch.manual_seed(0)
    logits = torch.randn(150, 211) * 4
    if is_coarse:
        logits = logits.round()
    tokens = torch.randint(0, 211, (150,))
    found = logprobs(logits, tokens, num_top)
    expected = logits.double().log_softmax(dim=-1)
    assert torch.allclose(found.logprob, expected.gather(1, tokens[:, None])[:, 0], atol=1e-12)
    assert found.top_ids.shape == (150, num_top)
    for row in range(150):
        order = sorted(range(211), key=lambda token, row=row: (-float(logits[row, token]), token))  # type: ignore[misc]
        assert found.top_ids[row].tolist() == order[:num_top]
        likelier = sum(float(logits[row, token]) > float(logits[row, tokens[row]]) for token in range(211))
        assert int(found.rank[row]) == likelier + 1
    assert torch.allclose(found.top_logprobs, expected.gather(1, found.top_ids), atol=1e-12)


def test_a_row_does_not_depend_on_its_neighbours_and_how_many_are_asked() -> None:
    torch.manual_seed(1)
    logits = (torch.randn(5, 3000) * 2).bfloat16().float()
    tokens = torch.tensor([0, 5, 17, 2999, 800])
    together = logprobs(logits, tokens, 20)
    for row in range(5):
        alone = logprobs(logits[row : row + 1], tokens[row : row + 1], 3)
        assert torch.equal(alone.logprob[0], together.logprob[row])
        assert torch.equal(alone.top_ids[0], together.top_ids[row, :3])
        assert torch.equal(alone.top_logprobs[0], together.top_logprobs[row, :3])


def test_a_small_vocabulary_has_no_more_tokens_than_it_has() -> None:
    assert logprobs(torch.zeros(2, 3), torch.tensor([0, 2]), 20).top_ids.tolist() == [[0, 1, 2], [0, 1, 2]]
