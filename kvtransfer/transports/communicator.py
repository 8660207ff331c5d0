"""Two ranks of torch.distributed: the source is 0 and sends, the taker is 1 and receives.

Built from a store that the source hosts: pods come and go. Which backend carries is the device's matter and nobody
else's. Neither is encrypted or knows who is at the other end: for networks that may be trusted with the KV.

Knows nothing of blocks. Every call blocks for `timeout_s` at most; all but `abort` belong in one thread. Invariant: a
communicator that failed or was given up is aborted, never destroyed: destroying is a collective, and its peer may be
gone.
"""

from __future__ import annotations

import contextlib
import math
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch._C import _distributed_c10d as c10d  # what torch.distributed shows, with types

from pagewire.core.errors import PagewireError, StreamLost, TransferFailed, TransferTimeout
from pagewire.kvtransfer.transports.polling import until
from pagewire.kvtransfer.transports.process_group import gloo, nccl

SOURCE, TAKER = 0, 1
_CARD = struct.Struct("<4sH16sdB")  # magic, port, name, seconds until an idle one closes, length of the host's name
_MAGIC = b"PWC1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Where a pair meets: the source's store, under a random name that its proven card carried."""

    host: str
    port: int
    name: bytes
    idle_s: float

    def card(self) -> bytes:
        """Return it as bytes. Raises ValueError on a host of more than 255 bytes."""
        host = self.host.encode()
        if not 0 < len(host) < 256:
            raise ValueError(f"a host name of {len(host)} bytes")
        return _CARD.pack(_MAGIC, self.port, self.name, self.idle_s, len(host)) + host

    @classmethod
    def read(cls, card: bytes) -> Rendezvous:
        """Return what a source's card says. Raises TransferFailed on anything else."""
        if len(card) < _CARD.size:
            raise TransferFailed(f"a card of {len(card)} bytes")
        magic, port, name, idle_s, length = _CARD.unpack_from(card)
        host = card[_CARD.size :]
        if magic != _MAGIC or len(host) != length or not math.isfinite(idle_s) or idle_s <= 0 or not host.isascii():
            raise TransferFailed("not the card of a collective source")
        return cls(host=host.decode("ascii"), port=port, name=name, idle_s=idle_s)


def host_store(host: str, name: bytes, timeout_s: float) -> tuple[c10d.Store, int]:
    """Open a store that listens on `host` alone; returns it and its port. Raises StreamLost."""
    try:
        listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        port = listener.getsockname()[1]
        store = c10d.TCPStore(
            host,
            port,
            is_master=True,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),  # the store closes it
        )
    except (OSError, RuntimeError) as error:
        raise StreamLost(f"no store on {host}: {_first_line(error)}") from None
    return c10d.PrefixStore(name.hex(), store), port


def join_store(meeting: Rendezvous, timeout_s: float) -> c10d.Store:
    """Reach the source's store. Raises StreamLost."""
    try:
        # The store's own client tries again and again, and prints stack traces while it does.
        socket.create_connection((meeting.host, meeting.port), timeout_s).close()
        store = c10d.TCPStore(
            meeting.host,
            meeting.port,
            is_master=False,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
        )
    except (OSError, RuntimeError) as error:
        raise StreamLost(f"no store at {meeting.host}:{meeting.port}: {_first_line(error)}") from None
    return c10d.PrefixStore(meeting.name.hex(), store)


class Communicator:
    """The pair; the constructor returns when both are there. `host` is the own address that gloo listens on.

    Tensors lie on `device`, are contiguous, and are as long on both sides. Raises StreamLost or TransferTimeout.
    """

    def __init__(
        self, store: c10d.Store, *, number: int, rank: int, device: torch.device, host: str, timeout_s: float
    ) -> None:
        self._peer = TAKER if rank == SOURCE else SOURCE
        self._timeout_s = timeout_s
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._aborted = threading.Event()
        store = c10d.PrefixStore(str(number), store)
        try:
            self._group = (
                nccl(store, rank, 2, device, timeout_s) if self._stream else gloo(store, rank, 2, host, timeout_s)
            )
        except RuntimeError as error:
            raise StreamLost(f"no communicator of two: {_first_line(error)}") from None

    @property
    def stream(self) -> contextlib.AbstractContextManager[object]:
        """The CUDA stream that everything of this communicator runs on, as a context; none on a CPU."""
        return torch.cuda.stream(self._stream) if self._stream else contextlib.nullcontext()

    def send(self, tensor: torch.Tensor) -> None:
        """Return when the tensor may be overwritten."""
        with self.stream, self._named("send"):
            self._finish(self._group.send([tensor], self._peer, 0), tensor)

    def receive(self, tensor: torch.Tensor) -> None:
        """Return when the tensor is filled."""
        with self.stream, self._named("receive"):
            self._finish(self._group.recv([tensor], self._peer, 0), tensor)

    def abort(self) -> None:
        """Give it up; from any thread, any number of times. What is under way fails, on gloo once the peer is gone."""
        if not self._aborted.is_set():
            self._aborted.set()
            if self._stream is None:
                self._abort()
            else:  # NCCL waits for what runs on the device
                threading.Thread(target=self._abort, name="communicator-abort", daemon=True).start()

    def _abort(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._group.abort()

    def _finish(self, work: c10d.Work, tensor: torch.Tensor) -> None:
        if self._stream is None:
            work.wait(timedelta(seconds=self._timeout_s))
            return
        work.wait()  # on CUDA our stream waits, not we
        tensor.record_stream(self._stream)  # given up, its memory is nobody else's before NCCL has let go of it
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        is_over = until(event.query, self._timeout_s, self._aborted)
        if self._aborted.is_set():
            raise RuntimeError("aborted")
        if not is_over:
            raise RuntimeError("timed out")

    @contextlib.contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """Turn torch's errors into ours; a communicator that failed is of no more use."""
        try:
            yield
        except RuntimeError as error:
            self.abort()
            text = _first_line(error)
            kind: type[PagewireError] = TransferTimeout if "timed out" in text.lower() else StreamLost
            raise kind(f"{what}: {text}") from None


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
