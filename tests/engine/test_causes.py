"""What the guide to the KV plane calls the losses, and what the code does: the same names, each for the same thing."""

from __future__ import annotations

import re
from pathlib import Path

from pagewire.core.errors import BY_CAUSE, LeaseExpired, TransferFailed
from pagewire.engine.exchange.peers import CAUSES, UNREACHED

GUIDE = Path(__file__).parents[2] / "docs" / "kv-plane.md"
ROW = re.compile(r"^\| `(?P<cause>\w+)` \| (?P<meaning>.+) \| (?P<follows>.+) \|$", re.MULTILINE)
NEVER_ASKED = "never asked"


def section() -> str:
    """Return the guide's section on causes."""
    (found,) = re.findall(r"^## What a loss is called\n(.*?)^## ", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    return str(found)


def table() -> dict[str, str]:
    """Return what follows, by cause."""
    return {row["cause"]: row["follows"] for row in ROW.finditer(section())}


def test_every_cause_of_the_table_is_one_of_the_code_and_the_other_way_round() -> None:
    text, rows = section(), table()
    assert set(rows) <= set(BY_CAUSE)
    assert set(rows) == {*CAUSES, *UNREACHED} - {TransferFailed.cause}
    assert f"`{TransferFailed.cause}` is the cause where no" in text  # the root has no row: it is what has no name
    assert len(ROW.findall(text)) == len(rows)


def test_those_that_were_never_asked_are_counted_apart() -> None:
    rows = table()
    unreached = {cause for cause, follows in rows.items() if follows == NEVER_ASKED}
    assert unreached == set(UNREACHED) - {TransferFailed.cause}
    assert all(issubclass(BY_CAUSE[cause], TransferFailed) for cause in rows.keys() - unreached)


def test_a_lease_ends_at_the_source_alone() -> None:
    assert {cause for cause, follows in table().items() if follows == "released"} == {LeaseExpired.cause}
