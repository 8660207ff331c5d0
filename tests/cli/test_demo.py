"""What `pagewire demo` says of a transfer."""

from __future__ import annotations

from typing import Any

import pytest

from pagewire.cli.demo import Told, table


def told(**report: Any) -> Told:
    whole = {
        "placement": "remote",
        "prefill_pod": "prefill-0",
        "decode_pod": "decode-0",
        "chunks": 4,
        "blocks_shipped": 8,
        "bytes_shipped": 4096,
        "transfer_s": 0.010,
        "exposed_s": 0.002,
        "transport": "shm",
        **report,
    }
    stamps = [{"phase": "received", "at_s": 1.0}, {"phase": "first_token", "at_s": 1.5}]
    usage = {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens": 1}
    return Told(usage=usage, report=whole, timelines=[{"process": "router", "stamps": stamps}])


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ({}, "80% of 10.0 ms; decoding waited 2.0 ms for bytes"),
        (
            {"chunks": 1, "exposed_s": 0.010},
            "0% of 10.0 ms; decoding waited 10.0 ms for bytes; a single chunk has no next one to hide behind",
        ),
        ({"blocks_shipped": 0, "chunks": 1}, "nothing moved"),
    ],
)
def test_the_share_of_the_transfer_that_was_hidden(report: dict[str, Any], expected: str) -> None:
    (line,) = [line for line in table(told(**report)) if "transfer hidden" in line]
    assert line.split(maxsplit=2)[2] == expected


@pytest.mark.parametrize(("transport", "expected"), [("shm", "8 blocks, 4 KiB by shm"), ("", "8 blocks, 4 KiB")])
def test_what_was_shipped_and_by_what(transport: str, expected: str) -> None:
    (line,) = [line for line in table(told(transport=transport)) if "shipped" in line]
    assert line.split(maxsplit=1)[1] == expected
