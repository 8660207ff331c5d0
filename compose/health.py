"""For health checks of containers: ends with 0 where /health at this container's own address says that it serves.

    pagewire-health PORT

Every pod and router has that page; what it says is theirs. It may be shown over TLS, as files, variables and flags may
say: so the port itself is asked. Python's own library alone, since this runs every few seconds in each container.
"""

import os
import socket
import ssl
import sys
from http.client import HTTPConnection, HTTPException, HTTPSConnection

ANY = ("", "0.0.0.0", "::")  # listens on loopback too
TIMEOUT_S = 4.0


def main(port: int) -> int:
    """Return the exit code."""
    host = os.environ.get("PAGEWIRE_HOST") or socket.gethostbyname(socket.gethostname())
    host = "127.0.0.1" if host in ANY else host
    try:
        try:
            return asked(HTTPConnection(host, port, timeout=TIMEOUT_S))
        except ConnectionRefusedError:
            raise
        except (HTTPException, ConnectionError):  # it hung up on what is no TLS
            return asked_by_tls(host, port)
    except (OSError, HTTPException) as error:
        print(error)
        return 1


def asked_by_tls(host: str, port: int) -> int:
    """Return the exit code as `asked` does, 0 where callers have to show a certificate: then it is seen to listen."""
    # Its certificate is for callers, or by a name: none names an address of this container.
    connection = HTTPSConnection(host, port, timeout=TIMEOUT_S, context=ssl._create_unverified_context())
    connection.connect()
    try:
        return asked(connection)
    except (ConnectionError, ssl.SSLError) as error:  # after our part of the handshake: it wants to see a certificate
        print(error)
        return 0


def asked(connection: HTTPConnection) -> int:
    """Return the exit code that the page stands for; raises OSError, HTTPException."""
    connection.request("GET", "/health")
    answer = connection.getresponse()
    print(answer.status, answer.read(1000).decode(errors="replace"))
    return 0 if answer.status == 200 else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
