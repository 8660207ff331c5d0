"""What the pods have to do, and what their caches hold. Usage: python watch.py [ROUTER]"""

from __future__ import annotations

import sys

from pagewire.client import Client, KvEventKind
from pagewire.core.errors import DeadlineExceeded


def main(router: str, seconds: float = 2.0) -> None:
    """Print each pod's load, then what happens in their caches for a while."""
    with Client(router) as client:
        for pod in client.loads():
            state = "usable" if pod.usable else pod.reason
            running = (
                "" if pod.load is None else f", {pod.load.num_running} running, {pod.load.blocks_free} blocks free"
            )
            print(f"{pod.role} {pod.pod_id}: {state}{running}")
        held: dict[str, set[bytes]] = {}
        try:
            with client.kv_events(timeout_s=seconds) as events:
                for event in events:
                    match event.kind:
                        case KvEventKind.GAP:
                            held.pop(event.pod_id, None)  # until its next snapshot
                            continue
                        case KvEventKind.SNAPSHOT if event.part == 0:
                            held[event.pod_id] = set()
                    blocks = held[event.pod_id]
                    blocks.difference_update(event.evicted)
                    blocks.update(block.hash for block in event.stored)
                    print(f"{event.pod_id} holds {len(blocks)} blocks after change {event.sequence}")
        except DeadlineExceeded:
            print("that was it")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50050")
