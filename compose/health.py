"""For health checks of containers: ends with 0 where /health at this container's own address says that it serves.

    pagewire-health PORT

Every pod and router has that page; what it says is theirs. Python's own library alone, since this runs every few
seconds in each container.
"""

import os
import socket
import sys
from http.client import HTTPConnection, HTTPException

ANY = ("", "0.0.0.0", "::")  # listens on loopback too
TIMEOUT_S = 4.0


def main(port: int) -> int:
    """Return the exit code."""
    host = os.environ.get("PAGEWIRE_HOST") or socket.gethostbyname(socket.gethostname())
    connection = HTTPConnection("127.0.0.1" if host in ANY else host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        print(answer.status, answer.read(1000).decode(errors="replace"))
    except (OSError, HTTPException) as error:
        print(error)
        return 1
    return 0 if answer.status == 200 else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
