"""Room for the bodies that come and wait to be read, of all requests together.

Pure. Knows sizes and tenants, no door. The first `FREE_BYTES` of each body are not counted, so that large ones are in
no small one's way. Invariants: what is counted of all is never more than there is room for; a tenant takes no more than
leaves as much as it has then, so that alone it has half, and whoever comes finds some.
"""

from __future__ import annotations

from collections import defaultdict
from types import TracebackType

from pagewire.router.refusals import Reason, Refused
from pagewire.router.tenants import Tenant

FREE_BYTES = 64 << 10  # as many as uvicorn takes from a connection anyway


class Body:
    """One body, as far as it has come; counted until it is taken, or its context ends."""

    def __init__(self, room: BodyRoom, tenant: Tenant) -> None:
        self._room = room
        self._tenant = tenant.name
        self._data = bytearray()

    def __enter__(self) -> Body:
        """Return the body itself."""
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Forget it."""
        self.take()

    def add(self, part: bytes) -> None:
        """Take what came of it; raises Refused where there is no room for that."""
        size = len(self._data)
        self._room.change(self._tenant, _counted(size + len(part)) - _counted(size))
        self._data += part

    def take(self) -> bytes:
        """Return all of it, and keep nothing."""
        self._room.change(self._tenant, -_counted(len(self._data)))
        data, self._data = bytes(self._data), bytearray()
        return data


class BodyRoom:
    """Room for `most` bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0
        self._taken_by: dict[str, int] = defaultdict(int)

    @property
    def taken(self) -> int:
        """Bytes that are counted now."""
        return self._taken

    def body(self, tenant: Tenant) -> Body:
        """Return a body of which nothing has come."""
        return Body(self, tenant)

    def change(self, tenant: str, num_bytes: int) -> None:
        """Count more of a tenant, or less; raises Refused where there is no room for more."""
        own, taken = self._taken_by[tenant] + num_bytes, self._taken + num_bytes
        if num_bytes > 0 and own > self._most - taken:
            message = (
                f"bodies of {self._taken} bytes, {own - num_bytes} of them this tenant's, are on their way or wait to "
                "be read, which leaves no room for more of it"
            )
            raise Refused(Reason.BODIES, message, retry_after_s=1.0)
        self._taken = taken
        self._taken_by[tenant] = own
        if not own:
            del self._taken_by[tenant]


def _counted(size: int) -> int:
    return max(0, size - FREE_BYTES)
