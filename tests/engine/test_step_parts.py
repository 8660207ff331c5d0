"""A step that is too long for a frame, told in several: what the front hears of them is what the whole would have told.

In bounds of some hundred bytes, and once at the true one; that a whole engine goes on behind it is not shown here.
"""

from __future__ import annotations

import socket
import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.core.block_hash import BlockHash
from pagewire.core.engine_messages import BlockLife, CachedBlock, ChunkDone, Ping, PromptChunk, SequenceEnd, StepDone
from pagewire.core.errors import InvalidRequest
from pagewire.core.load import Load
from pagewire.core.sampling import FinishReason
from pagewire.core.token_record import TokenLogprobs, TokenRecord
from pagewire.engine import frames
from pagewire.engine.process import FrontConnection
from pagewire.engine.step_parts import halves

BOUND = 400  # bytes; more than anything that cannot be cut
LOAD = Load(num_running=3, blocks_total=9)
CHUNK = ChunkDone(request_id="a", first_block=2, block_ids=(4, 5), cached_tokens=1, computed_tokens=9, is_last=True)
NAMES = [f"request-{number}" for number in range(5)]


def scores(count: int) -> tuple[TokenLogprobs, ...]:
    return tuple(
        TokenLogprobs(token=at, logprob=-1.5, rank=2, top_tokens=(7, 8), top_logprobs=(-0.5, -0.25))
        for at in range(count)
    )


def blocks(first: int, count: int) -> tuple[CachedBlock, ...]:
    return tuple(CachedBlock(block_hash=BlockHash(bytes([at]) * 16), depth=at) for at in range(first, first + count))


def told(step: StepDone, bound: int) -> list[StepDone]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "MAX_FRAME_BYTES", bound)
        packed = list(frames.pack_parts(step))
        for frame in packed:
            assert frames.body_length(frame[: frames.HEADER_BYTES]) == len(frame) - frames.HEADER_BYTES
    return [frames.unpack(frame[frames.HEADER_BYTES :]) for frame in packed]  # type: ignore[misc]


def heard(steps: Sequence[StepDone]) -> dict[str, object]:
    """Returns what a front makes of steps: lists in their order, and what each sequence yielded."""
    records = [record for step in steps for record in step.records]
    prompts: defaultdict[str, list[TokenLogprobs]] = defaultdict(list)
    tokens: defaultdict[tuple[str, int], list[TokenRecord]] = defaultdict(list)
    for record in records:
        prompts[record.request_id].extend(record.prompt_logprobs)
        if record.tokens:
            tokens[record.request_id, record.index].append(replace(record, prompt_logprobs=()))
    lists = {
        name: [each for step in steps for each in getattr(step, name)]
        for name in ("stored", "evicted", "preempted", "lives", "ends")
    }
    by_request = {
        name: {
            request: [each for step in steps for each in getattr(step, name) if each.request_id == request]
            for request in NAMES
        }
        for name in ("chunks", "prompts")
    }
    return {**lists, **by_request, "scores": dict(prompts), "tokens": dict(tokens)}


@st.composite
def long_steps(draw: st.DrawFn) -> StepDone:
    hands_off = draw(st.booleans())
    names = draw(st.lists(st.sampled_from(NAMES), unique=True))
    records, chunks = [], []
    for name in names:
        for index in range(draw(st.integers(1, 2 if hands_off else 4))):
            count = 0 if hands_off or index else draw(st.integers(0, 40))
            tokens = draw(st.lists(st.integers(0, 9), min_size=not count, max_size=2))
            ends = tokens and not hands_off and draw(st.booleans())
            record = TokenRecord(
                request_id=name,
                index=index,
                position=3,
                tokens=tuple(tokens),
                finish_reason=FinishReason.STOP if ends else None,
                prompt_logprobs=scores(count),
            )
            records.append(record)
        if hands_off:
            chunks.append(replace(CHUNK, request_id=name))
    counts = st.integers(0, 30)
    return StepDone(
        records=tuple(records),
        chunks=tuple(chunks),
        ends=tuple(SequenceEnd(request_id=name, cached_tokens=0, computed_tokens=9) for name in names),
        stored=blocks(0, draw(counts)),
        evicted=blocks(100, draw(counts)),
        load=LOAD,
        elapsed_s=0.5,
        prompts=tuple(PromptChunk(request_id=name, num_tokens=8) for name in names),
        preempted=tuple(draw(st.lists(st.sampled_from(NAMES), max_size=40))),
        num_tokens=17,
        lives=(BlockLife(lived_s=1.0, idle_s=0.5),) * draw(counts),
    )


@given(long_steps())
def test_the_parts_tell_what_the_whole_tells(step: StepDone) -> None:
    parts = told(step, BOUND)
    assert heard(parts) == heard([step])
    assert [part.load for part in parts] == [None] * (len(parts) - 1) + [LOAD]
    assert [part.num_tokens for part in parts] == [0] * (len(parts) - 1) + [17]
    assert {part.elapsed_s for part in parts} == {0.5}
    for part in parts:
        assert {chunk.request_id for chunk in part.chunks} <= {record.request_id for record in part.records}
    assert told(step, 1 << 20) == [frames.unpack(frames.pack(step)[frames.HEADER_BYTES :])]


@given(long_steps())
def test_the_cache_comes_first_and_ends_last(step: StepDone) -> None:
    parts = told(step, BOUND)
    order = [
        at
        for part in parts
        for at, names in enumerate((("stored", "evicted"), ("prompts", "chunks", "records"), ("preempted", "ends")))
        if any(getattr(part, name) for name in names)
    ]
    assert order == sorted(order)


def test_a_record_is_cut_as_if_its_prompt_had_come_in_chunks() -> None:
    record = TokenRecord(
        request_id="a", index=0, position=0, tokens=(5,), logprobs=scores(1), finish_reason=FinishReason.LENGTH,
        prompt_logprobs=scores(50),
    )  # fmt: skip
    *early, last = [only for part in told(StepDone(records=(record,)), BOUND) for only in part.records]
    assert len(early) > 2
    assert {(one.tokens, one.logprobs, one.finish_reason) for one in early} == {((), (), None)}
    assert replace(last, prompt_logprobs=record.prompt_logprobs) == record
    assert tuple(score for one in (*early, last) for score in one.prompt_logprobs) == record.prompt_logprobs


@pytest.mark.parametrize(
    "step",
    [
        StepDone(load=LOAD),
        StepDone(stored=blocks(0, 1)),
        StepDone(ends=(SequenceEnd(request_id="a", cached_tokens=0, computed_tokens=1),)),
        StepDone(prompts=(PromptChunk(request_id="a", num_tokens=1),)),
        StepDone(records=(TokenRecord(request_id="a", index=0, position=0, tokens=(1, 2)),)),
        StepDone(records=(TokenRecord(request_id="a", index=0, position=0, tokens=(1, 2)),) * 2, chunks=(CHUNK,)),
    ],
)  # fmt: skip
def test_what_cannot_be_cut_is_refused_by_its_length(step: StepDone) -> None:
    assert halves(step) is None
    with pytest.raises(InvalidRequest, match=r"a StepDone of \d+ bytes; at most 3"):
        told(step, 3)


def test_only_what_is_too_long_is_cut_and_only_steps_are(monkeypatch: pytest.MonkeyPatch) -> None:
    step, ping = StepDone(stored=blocks(0, 2)), Ping(nonce=300)
    size = len(frames.pack(step)) - frames.HEADER_BYTES
    assert told(step, size) == [step]
    assert told(step, size - 1) == [StepDone(stored=blocks(0, 1)), StepDone(stored=blocks(1, 1))]
    assert list(frames.pack_parts(ping)) == [frames.pack(ping)]
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 3)
    with pytest.raises(InvalidRequest, match=r"a Ping of \d+ bytes"):
        list(frames.pack_parts(ping))


def test_two_of_anything_can_be_told_apart() -> None:
    records = tuple(TokenRecord(request_id=name, index=0, position=0, tokens=(1, 2)) for name in "ab")
    chunks = tuple(replace(CHUNK, request_id=name) for name in "ab")
    cut = halves(StepDone(records=records, chunks=chunks))
    assert cut == tuple(
        StepDone(records=(record,), chunks=(chunk,)) for record, chunk in zip(records, chunks, strict=True)
    )
    scored = replace(records[0], prompt_logprobs=scores(2))
    cut = halves(StepDone(records=(scored,)))
    assert cut is not None
    assert [record.prompt_logprobs for half in cut for record in half.records] == [scores(2)[:1], scores(2)[1:]]


def test_a_step_of_more_than_16_mib_reaches_the_front() -> None:
    """Such as a role change tells of a large cache: the process ended over it."""
    near, far = socket.socketpair()
    stored = tuple(CachedBlock(block_hash=BlockHash(at.to_bytes(32, "big")), depth=at) for at in range(450_000))
    step = StepDone(stored=stored, load=LOAD)
    sending = threading.Thread(target=FrontConnection(far).send, args=(step,))
    sending.start()
    front = FrontConnection(near)
    parts: list[StepDone] = []
    while not parts or parts[-1].load is None:
        part = front.receive()
        assert isinstance(part, StepDone)
        parts.append(part)
    sending.join()
    near.close()
    far.close()
    assert len(parts) > 1
    assert tuple(block for part in parts for block in part.stored) == stored
