"""The client that counts a served stream's events: each once, wherever the bytes are cut, and nothing ends unseen."""

from __future__ import annotations

import asyncio
import importlib
import itertools
from collections.abc import Iterable
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from source_tree import ROOT

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
EVENTS = [b'data: {"choices":[{"index":0,"text":"w%d"}]}\n\n' % number for number in range(5)]
ANSWER = HEAD + b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in (*EVENTS, b"data: [DONE]\n\n"))


@pytest.fixture(scope="module")
def counts() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "bench" / "support"))
        return importlib.import_module("stream_counts")


def received(counts: Any, parts: Iterable[bytes]) -> Any:
    """Return what a stream that comes in these parts, and breaks off then, is counted as."""

    async def feed() -> Any:
        stream = counts.CountedStream(b"")
        stream.connection_made(mock.Mock())
        for part in parts:
            stream.data_received(part)
        stream.connection_lost(None)
        return await stream.done

    return asyncio.run(feed())


@given(cuts=st.lists(st.integers(0, len(ANSWER)), max_size=12))
def test_each_event_is_counted_once_wherever_the_bytes_are_cut(counts: Any, cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), len(ANSWER)]
    count = received(counts, [ANSWER[start:end] for start, end in itertools.pairwise(ends)])
    assert count.events == len(EVENTS)
    assert count.first_s > 0


def test_a_refusal_and_a_stream_that_breaks_off_are_told(counts: Any) -> None:
    with pytest.raises(RuntimeError, match=r"answered HTTP/1\.1 429"):
        received(counts, [b"HTTP/1.1 429 Too Many Requests\r\n\r\nbusy"])
    with pytest.raises(RuntimeError, match="before its time"):
        received(counts, [ANSWER[:-20]])
