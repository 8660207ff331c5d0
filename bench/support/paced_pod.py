"""A pod process without an engine: real links and a real registration, tokens at a set pace, a step's in one frame.

    python paced_pod.py --redis URL --cluster NAME --model FOLDER --step-ms MS     (secret: PAGEWIRE_CLUSTER_SECRET)

Says where it listens in one JSON line, then answers each line of stdin with its stamps; a request's is from after its
frame was read.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence

import grpc
from paced_answers import Paced, PacedAnswers, serve, token_ids

from pagewire.core.fingerprint import Fingerprint, tokenizer_digest
from pagewire.core.messages import Cancel, Ended, LinkMessage, Role, Submit, Tokens
from pagewire.core.report import Report
from pagewire.core.sampling import FinishReason
from pagewire.core.side_door import SideDoor
from pagewire.core.token_record import TokenRecord
from pagewire.serving.handshake import Identity
from pagewire.serving.link import CHANNEL_OPTIONS, Link, LinkEvents
from pagewire.serving.link_server import LinkServer
from pagewire.serving.redis_address import RedisAddress
from pagewire.serving.registration import Registration
from pagewire.serving.registry import Registry

POD_ID = "paced-0"
RENEW_S = 3.0


class PacedPod:
    """A colocated pod, as far as a router can tell."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.answers = PacedAnswers(options.step_ms / 1e3)
        self._options = options
        self._tokens = token_ids(options.model)
        self._requests: dict[str, tuple[Link, Paced]] = {}
        self._askers: dict[int, tuple[Link, str]] = {}  # by the request's number
        tokenizer = (options.model / "tokenizer.json").read_bytes()
        self._fingerprint = Fingerprint(
            model_name="paced",
            model_digest="paced",
            tokenizer_digest=tokenizer_digest(tokenizer),
            kv_fingerprint="paced",
            kv_layout="paced",
            block_size=16,
            hash_version=1,
            max_model_len=8192,
        )
        events = LinkEvents(on_message=self._receive, on_up=lambda _: None, on_down=self._down)
        self._links = LinkServer(self._identity, events, door=SideDoor())

    async def serve(self) -> None:
        """Serve until cancelled."""
        server = grpc.aio.server(options=CHANNEL_OPTIONS)
        server.add_generic_rpc_handlers((self._links.handler(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self.answers.announce(grpc=f"127.0.0.1:{port}")
        await asyncio.gather(self._register(f"127.0.0.1:{port}"), self.answers.run(self._emit))

    async def _register(self, address: str) -> None:
        registry = Registry(RedisAddress.parse(self._options.redis), self._options.cluster)
        registration = Registration(
            pod_id=POD_ID,
            incarnation="1",
            role=Role.COLOCATED,
            address=address,
            metrics="",
            fingerprint=self._fingerprint,
        )
        while True:
            await registry.register(registration)
            await asyncio.sleep(RENEW_S)

    def _identity(self) -> Identity:
        return Identity(
            peer_id=POD_ID,
            incarnation="1",
            role=Role.COLOCATED,
            secret=os.environ["PAGEWIRE_CLUSTER_SECRET"].encode(),
            fingerprint=self._fingerprint,
        )

    def _down(self, link: Link) -> None:
        for request_id in [each for each, (owner, _) in self._requests.items() if owner is link]:
            self.answers.drop(self._forget(request_id))

    def _forget(self, request_id: str) -> Paced:
        _, request = self._requests.pop(request_id)
        del self._askers[request.number]
        return request

    def _receive(self, link: Link, message: LinkMessage) -> None:
        if isinstance(message, Submit):
            spec = message.spec
            request = self.answers.begin(spec.sampling.seed, spec.sampling.max_tokens)
            self._requests[spec.request_id] = link, request
            self._askers[request.number] = link, spec.request_id
        elif isinstance(message, Cancel) and message.request_id in self._requests:
            self.answers.drop(self._forget(message.request_id))
            link.send(Ended(request_id=message.request_id))

    def _emit(self, batch: Sequence[Paced]) -> None:
        # A step's tokens for one router are one frame.
        frames: dict[Link, list[TokenRecord]] = {}
        tokens = self._tokens
        for request in batch:
            link, request_id = self._askers[request.number]
            record = TokenRecord(
                request_id=request_id,
                index=0,
                position=request.sent,
                tokens=(tokens[request.sent % len(tokens)],),
                finish_reason=FinishReason.LENGTH if request.sent + 1 == request.length else None,
            )
            frames.setdefault(link, []).append(record)
        for link, records in frames.items():
            link.send(Tokens(records=tuple(records)))
        for request in batch:
            if request.sent + 1 == request.length:
                link, request_id = self._askers[request.number]
                self._forget(request_id)
                link.send(Ended(request_id=request_id, report=Report(placement="local", decode_pod="paced")))


if __name__ == "__main__":
    serve(__doc__, PacedPod, "--redis", "--cluster")
