"""Several routers, limits, retries, and errors by name. Usage: python failover.py [ROUTER,ROUTER...]"""

from __future__ import annotations

import sys

from pagewire.client import Client, PagewireError, RetryPolicy, Timeout
from pagewire.core.errors import InvalidRequest, Overloaded


def main(routers: str) -> None:
    """Use the first router that is there; see what a wrong request and a full cluster raise."""
    nobody = "127.0.0.1:1"  # as if one router were down
    client = Client(
        [nobody, *routers.split(",")],
        timeout=Timeout(connect_s=2.0, total_s=60.0),
        retry=RetryPolicy(max_attempts=4, first_backoff_s=0.2, max_backoff_s=2.0),
    )
    with client:
        print(repr(client.generate("Hello", max_tokens=8).text))
        try:
            client.generate("Hello", top_p=2.0)
        except InvalidRequest as error:
            print(f"{error.field}: {error}")
        try:
            client.generate("Hello", max_tokens=8, timeout_s=30.0)
        except Overloaded as error:
            print(f"come back in {error.retry_after_s} s")
        except PagewireError as error:
            print(f"request {error.request_id} ended: {error.cause}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50050")
