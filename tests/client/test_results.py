"""What a caller gets back has short names for its first answer, and empty values for what was not asked for."""

from __future__ import annotations

from pagewire.client.cluster import KvEvent, KvEventKind
from pagewire.client.results import (
    Chunk,
    Message,
    Output,
    Result,
    TokenLogprob,
    ToolCall,
    ToolCallPart,
    TransferReport,
    Usage,
)
from pagewire.core.sampling import FinishReason

CALL = ToolCall(id="a", name="add", arguments='{"a": 1}')
LOGPROB = TokenLogprob(token_id=1, data=b"P", logprob=-0.5, rank=1)
FIRST = Output(
    text="Paris", token_ids=(1, 2), finish_reason=FinishReason.TOOL_CALLS, stop="END", logprobs=(LOGPROB,),
    tool_calls=(CALL,), reasoning="Lyon?",
)  # fmt: skip
SECOND = Output(text="Rome", token_ids=(3,), finish_reason=FinishReason.LENGTH, stop=None)


def test_the_short_names_are_those_of_the_first_answer() -> None:
    usage = Usage(prompt_tokens=5, completion_tokens=3, cached_tokens=4)
    result = Result(request_id="r1", outputs=(FIRST, SECOND), usage=usage)
    assert (result.text, result.token_ids, result.logprobs) == ("Paris", (1, 2), (LOGPROB,))
    assert (result.finish_reason, result.stop, result.tool_calls) == (FinishReason.TOOL_CALLS, "END", (CALL,))
    assert result.message == Message(role="assistant", content="Paris", tool_calls=(CALL,), reasoning="Lyon?")
    assert result.reasoning == "Lyon?"
    assert SECOND.message == Message(role="assistant", content="Rome", tool_calls=())
    assert usage.total_tokens == 8


def test_what_was_not_said_is_empty() -> None:
    chunk = Chunk(text="a", token_ids=(1,))
    assert (chunk.index, chunk.logprobs, chunk.finish_reason, chunk.stop, chunk.tool_calls) == (0, (), None, None, ())
    assert (SECOND.logprobs, SECOND.cumulative_logprob, SECOND.score, SECOND.tool_calls) == ((), None, None, ())
    part = ToolCallPart(index=1)
    assert (part.id, part.name, part.arguments) == ("", "", "")
    gap = KvEvent(kind=KvEventKind.GAP, pod_id="d0", incarnation="", sequence=1)
    assert (gap.stored, gap.evicted, gap.part, gap.num_parts, gap.reason) == ((), (), 0, 0, "")


def test_a_transfer_that_fetched_and_predicted_nothing_says_0() -> None:
    report = TransferReport(
        placement="local", prefill_pod="", decode_pod="d0", prefill_cached_tokens=0, prefill_computed_tokens=0,
        decode_cached_tokens=0, decode_computed_tokens=5, chunks=1, manifest_blocks=0, blocks_shipped=0,
        bytes_shipped=0, transfer_s=0.0, exposed_s=0.0,
    )  # fmt: skip
    assert (report.prefill_fetched_tokens, report.decode_fetched_tokens) == (0, 0)
    assert (report.predicted_local_s, report.predicted_remote_s) == (0.0, 0.0)
    assert (report.transport, report.causes, report.notes) == ("", (), ())
