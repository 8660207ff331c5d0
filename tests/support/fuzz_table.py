"""Every parser of foreign bytes: the one list that fuzzing, its corpus and its regressions go by.

`READERS` is what reads bytes in the product's source; where it stands, a parser of the list runs that file, or `EXEMPT`
says why none need. A test holds the source against both.
"""

from __future__ import annotations

import re
from pathlib import Path

import fuzz_callers
import fuzz_files
import fuzz_wire
from fuzz_parser import ROOT, Parser

PARSERS: tuple[Parser, ...] = (*fuzz_wire.PARSERS, *fuzz_callers.PARSERS, *fuzz_files.PARSERS)
CORPUS = ROOT / "tests" / "fuzz" / "corpus"
REGRESSIONS = ROOT / "tests" / "fuzz" / "regressions"

READERS = re.compile(
    r"json\.loads?\(|raw_decode\(|_DECODER\.decode\(|tomllib\.loads?\(|\.unpack(_from)?\(|\.FromString\b|from_bytes\("
    r"|ParseFromString\(|csv\.DictReader\(|safe_open\(|read_table\(|from_str\(|b64decode\(|fromhex\("
    r"|read_object\(|parse_object\(|read_toml\(|parse_toml\(|hiredis\.Reader\(|model_validate\("
)
EXEMPT = {
    "cli/child.py": "lines of a child process of ours, whose program we chose",
    "cli/demo.py": "answers of the router that the demo has started",
    "client/channel.py": "hands gRPC the protobuf parser whose messages the SDK's parsers take",
    "client/results.py": "`ToolCall.parsed`, which the caller asks for and which says what it raises",
    "core/documents.py": "what all other readers of JSON and TOML go through",
    "core/document_files.py": "the same for files",
    "engine/client.py": "hands frames to `engine/frames.py`, which is fuzzed",
    "engine/process.py": "hands frames to `engine/frames.py`, which is fuzzed",
    "engine/ranks/model_pass.py": "from its own rank 0, over a socket pair: `tests/engine/test_ranks.py` breaks it",
    "engine/ranks/rank_line.py": "lengths and bytes between the ranks of one pod, over a socket pair",
    "engine/ranks/follower.py": "hands what rank 0 of its pod sends to `engine/ranks/model_pass.py`",
    "engine/config.py": "an argument of a child process, which our own front wrote",
    "kvtransfer/transports/cuda_ipc.py": "hands the card to `cuda_card.py`, which is fuzzed",
    "kvtransfer/transports/nixl.py": "a card of fixed layout behind a proof; opening it is NIXL's own",
    "router/tool_desk.py": "a number out of a digest of ours",
    "router/connection_state.py": "counts of the kernel's about a connection",
    "serving/grpc_service.py": "gRPC's parser: `tests/fuzz/test_servers.py` and `tests/router/test_rpc_fuzz.py`",
    "slo/load/pieces.py": "numbers out of a digest of ours",
    "slo/sweeps/probe_plan.py": "a seed out of a digest of ours",
    "slo/sweeps/sweep_config.py": "what it has itself just written",
}


def named(name: str) -> Parser:
    """Return the parser of that name."""
    return next(each for each in PARSERS if each.name == name)


def folder_of(parser: Parser) -> str:
    """Return what a parser's folders of corpus and regressions are called."""
    return re.sub(r"[^a-z0-9]+", "-", parser.name.lower()).strip("-")


def kept(parser: Parser) -> list[Path]:
    """Return the files that are kept of a parser: its corpus, and what was wrong once."""
    return sorted(path for where in (CORPUS, REGRESSIONS) for path in (where / folder_of(parser)).glob("*"))
