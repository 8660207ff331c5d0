"""A NIXL source in a process of its own, for tests: prints its card as hex, closes on a line, ends with stdin.

It holds a pool as `transport_rigs.pool(filled=True)` does. UCX_TLS and its like come from the environment.
"""

from __future__ import annotations

import asyncio
import sys

from transport_rigs import pool

from pagewire.kvtransfer.transports.nixl import NixlOutlet


async def main() -> None:
    """Serve until stdin ends."""
    outlet = NixlOutlet(pool(int(sys.argv[1]), filled=True))
    sys.stdout.write((await outlet.open(b"")).hex() + "\n")
    sys.stdout.flush()
    while await asyncio.to_thread(sys.stdin.readline):
        outlet.close()
        sys.stdout.write("closed\n")
        sys.stdout.flush()
    outlet.close()


if __name__ == "__main__":
    asyncio.run(main())
