"""Stands in for `pagewire prefill`, `decode` and `router` where only their start and end matter.

Like them it prints one JSON line once it is up and ends on SIGTERM. FAKE_DIES names a role that fails at start,
FAKE_PODS says what the router is linked to, FAKE_KEEPING how many seconds pods take to end.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Health(BaseHTTPRequestHandler):
    """Hangs up on the first question; healthy then, and linked to all of FAKE_PODS from the third on, like a router."""

    asked = itertools.count()

    def do_GET(self) -> None:
        pods = json.loads(os.environ["FAKE_PODS"])
        asked = next(self.asked)
        if asked == 0:
            self.close_connection = True
            return
        if asked == 1:
            pods["prefill"] = 0
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"status": "ready", "pods": pods}).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def main() -> None:
    role, flags = sys.argv[1], dict(zip(sys.argv[2::2], sys.argv[3::2], strict=True))
    print(f"{role} begins", file=sys.stderr, flush=True)
    if os.environ.get("FAKE_DIES") == role:
        print("no room for the weights", file=sys.stderr, flush=True)
        sys.exit(3)
    said: dict[str, object] = {"pid": os.getpid(), "grpc": "127.0.0.1:1", "flags": flags}
    said["variables"] = sorted(name for name in os.environ if name.startswith("PAGEWIRE_"))
    # A launcher of several threads that is killed may send SIGTERM more than once: a handler would interrupt itself.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if role != "router":
        print(json.dumps({**said, "id": flags["--pod-id"], "metrics": "-"}), flush=True)
        signal.sigwait({signal.SIGTERM})
        if seconds := os.environ.get("FAKE_KEEPING"):
            time.sleep(float(seconds))
            print("all is kept", file=sys.stderr, flush=True)
        return
    with ThreadingHTTPServer(("127.0.0.1", 0), Health) as server:
        threading.Thread(target=server.serve_forever).start()
        print(json.dumps({**said, "http": f"http://127.0.0.1:{server.server_address[1]}"}), flush=True)
        signal.sigwait({signal.SIGTERM})
        server.shutdown()


if __name__ == "__main__":
    main()
