"""What an operator may do over HTTP: POST /pods/POD/role.

Knows HTTP; what a change is, `role_changes.py` says. Where no key makes an operator, nobody may.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pagewire.core.errors import InvalidRequest, PagewireError
from pagewire.core.messages import Role
from pagewire.router.guard import check_may_order
from pagewire.router.http_exchange import receive_body, refusal, request_id_of
from pagewire.router.json_text import read_body
from pagewire.router.role_changes import RoleChanges

MAX_BODY_BYTES = 4096


class OperatorDoor:
    """One router's."""

    def __init__(self, changes: RoleChanges) -> None:
        self._changes = changes

    def routes(self) -> Sequence[Route]:
        """Return what operators ask for, for the application."""
        return (Route("/pods/{pod_id}/role", self.change_role, methods=["POST"]),)

    async def change_role(self, request: Request) -> Response:
        """POST /pods/POD/role: 202 with the new incarnation, once it is seen; null when that takes too long."""
        request_id = request_id_of(request.headers)
        try:
            check_may_order()
            pod_id = request.path_params["pod_id"]
            change = await self._changes.change(pod_id, await _role(request), "an operator wants it")
        except PagewireError as error:
            return refusal(error, request_id)
        body = {"pod_id": pod_id, "role": change.role, "was": change.was, "incarnation": change.incarnation or None}
        return JSONResponse(body, status_code=202)


async def _role(request: Request) -> Role:
    data = bytearray()
    await receive_body(request, MAX_BODY_BYTES, data.extend)
    role = read_body(data).get("role")
    if role not in (Role.PREFILL, Role.DECODE, Role.COLOCATED):
        raise InvalidRequest(f"role must be prefill, decode or colocated, is {role!r:.100}", field="role")
    return Role(role)
