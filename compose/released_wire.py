"""Writes protos/released/released.toml: the versions of what this release says on the wire (make release-wire)."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from pagewire.core.block_hash import HASH_VERSION
from pagewire.core.messages import WIRE_VERSION
from pagewire.kvtransfer import ticket, wire

PATH = Path(__file__).resolve().parent.parent / "protos" / "released" / "released.toml"


def main() -> None:
    """Write the file."""
    PATH.write_text(
        f"""\
# What the last release says on the wire; written by `make release-wire`, and held against the current build by
# tests/architecture/test_wire_compatibility.py and tests/compatibility/. The messages are in pagewire/protos beside it.
release = "{metadata.version("pagewire")}"
link_version = {WIRE_VERSION}  # core/messages.py WIRE_VERSION
bulk_version = {wire.WIRE_VERSION}  # kvtransfer/wire.py WIRE_VERSION
ticket_version = {ticket.VERSION}  # kvtransfer/ticket.py VERSION
hash_version = {HASH_VERSION}  # core/block_hash.py HASH_VERSION
""",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
