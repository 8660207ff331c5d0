"""One NIXL agent over one pool, with its UCX backend: what a source lets be read, what a taker reads into.

An agent belongs to one end of one stream, for what ends it ends its peer's access: NIXL can neither withdraw a
registration from one peer nor call a read back (after a release or a disconnect over TCP the bytes still come). Only
destroying the agent is a fence. Over plain TCP, where UCX imitates remote reads, it costs more than that: UCX ends the
process of a source that stood still meanwhile. So NIXL is for networks and hosts that read memory by themselves.

Knows addresses and bytes; knows no blocks. Every call blocks and belongs in one thread, except `give_up`. Invariant:
when `read` has ended, by returning or raising, nothing writes here any more.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from pagewire.core.errors import StreamLost, TransferFailed, TransferTimeout
from pagewire.kvtransfer.plan import Span
from pagewire.kvtransfer.transports.polling import until

STAMP_BYTES = 16
_PACKAGES = ("nixl", "nixl_cu12")  # "nixl" chooses between its builds for CUDA 12 and 13; one of them does alone
# Microseconds between two turns of UCX's progress thread. It wakes up for what arrives; the Python API's own setting
# is 0, with which the thread takes a whole core, idle or not.
_PROGRESS_US = 10_000
_LONGEST_PAUSE_S = 0.001
# Set before the library is loaded, unless somebody did: no lines for the ordinary, no handlers for our signals, and
# segments for TCP that are not 8 KiB.
_ENVIRONMENT = {
    "NIXL_LOG_LEVEL": "ERROR",
    "UCX_LOG_LEVEL": "ERROR",
    "UCX_ERROR_SIGNALS": "",
    "UCX_TCP_TX_SEG_SIZE": "256k",
    "UCX_TCP_RX_SEG_SIZE": "256k",
}


@dataclass(frozen=True, slots=True)
class Region:
    """Memory to register: on the host, or on the CUDA device of that index."""

    address: int
    num_bytes: int
    device_index: int | None = None


@dataclass(frozen=True, slots=True)
class Remote:
    """A peer that was loaded: its name, where its region begins, whether that is on a device, its stamp."""

    name: str
    address: int
    device_index: int | None
    stamp_address: int
    stamp: bytes


class NixlAgent:
    """An agent with a random name. Raises TransferFailed where the library or its backend does not start."""

    def __init__(self, region: Region) -> None:
        self.name = secrets.token_hex(16)
        self._nixl = load_library()
        self._region = region
        # Beside the pool lies a stamp that a source changes when it ends, and room for a taker to read one into.
        self._side = ctypes.create_string_buffer(secrets.token_bytes(STAMP_BYTES), 2 * STAMP_BYTES)
        self._given_up = threading.Event()
        try:
            self._agent = self._start()
        except Exception as error:  # the binding's own classes, which have no root but this
            raise TransferFailed(f"NIXL does not start: {error}") from None

    @property
    def metadata(self) -> bytes:
        """What a peer needs to reach this agent."""
        return bytes(self._agent.getLocalMD())

    @property
    def stamp(self) -> bytes:
        """The stamp as it was when the agent began."""
        return self._side.raw[:STAMP_BYTES]

    @property
    def stamp_address(self) -> int:
        """Where a peer reads it."""
        return ctypes.addressof(self._side)

    def void_stamp(self) -> None:
        """From now on whoever reads the stamp knows that what it read before was not held for it; from any thread."""
        ctypes.memset(self.stamp_address, 0, STAMP_BYTES)

    def load(self, metadata: bytes, remote: Remote) -> None:
        """Make a peer's agent known. Raises TransferFailed when that is not whose metadata it is."""
        try:
            name = self._agent.loadRemoteMD(metadata)
        except Exception as error:
            raise TransferFailed(f"NIXL cannot load a peer: {error}") from None
        if name not in (remote.name, remote.name.encode()):
            raise TransferFailed("a peer's metadata is somebody else's")

    def read(self, remote: Remote, spans: Sequence[Span], timeout_s: float) -> None:
        """Read spans of the peer's region into ours. Raises TransferFailed; the agent is of no more use then."""
        base = remote.address, remote.device_index
        self._read(remote, base, (self._region.address, self._region.device_index), spans, timeout_s)

    def check_stamp(self, remote: Remote, timeout_s: float) -> None:
        """Raises StreamLost unless the peer's agent is as it was when it was loaded."""
        room = STAMP_BYTES
        self._read(
            remote,
            (remote.stamp_address, None),
            (self.stamp_address, None),
            [Span(0, room, STAMP_BYTES)],
            timeout_s,
        )
        if self._side.raw[room : room + STAMP_BYTES] != remote.stamp:
            raise StreamLost("the source has let go of its blocks")

    def give_up(self) -> None:
        """End a `read` soon: it destroys the agent, and raises."""
        self._given_up.set()

    def destroy(self) -> None:
        """End all access, in both directions; no-op the second time. Takes some 50 ms."""
        self._given_up.set()
        self._agent = None

    def _start(self) -> Any:
        nixl = self._nixl
        config = nixl.nixlAgentConfig()
        config.useProgThread = True  # a source answers through it where the network cannot read memory by itself
        config.useListenThread = False
        config.syncMode = nixl.NIXL_THREAD_SYNC_NONE
        config.pthrDelay = _PROGRESS_US
        config.captureTelemetry = False
        agent = nixl.nixlAgent(self.name, config)
        self._backend = agent.createBackend("UCX", {})
        side = Region(self.stamp_address, 2 * STAMP_BYTES)
        for region in (self._region, side):
            described = [(region.address, region.num_bytes, region.device_index or 0, b"")]
            agent.registerMem(nixl.nixlRegDList(self._kind(region.device_index), described), [self._backend])
        return agent

    def _kind(self, device_index: int | None) -> Any:
        return self._nixl.DRAM_SEG if device_index is None else self._nixl.VRAM_SEG

    def _read(
        self,
        remote: Remote,
        source: tuple[int, int | None],
        target: tuple[int, int | None],
        spans: Sequence[Span],
        timeout_s: float,
    ) -> None:
        if self._agent is None:
            raise StreamLost("the agent is destroyed")
        nixl = self._nixl
        theirs = [(source[0] + span.source, span.length, source[1] or 0) for span in spans]
        ours = [(target[0] + span.destination, span.length, target[1] or 0) for span in spans]
        try:
            handle = self._agent.createXferReq(
                nixl.NIXL_READ,
                nixl.nixlXferDList(self._kind(target[1]), ours),
                nixl.nixlXferDList(self._kind(source[1]), theirs),
                remote.name,
                b"",
                [self._backend],
            )
            try:
                self._finish(handle, timeout_s)
            finally:
                if self._agent is not None:
                    self._agent.releaseXferReq(handle)
        except TransferFailed:
            self.destroy()
            raise
        except Exception as error:
            self.destroy()
            raise StreamLost(f"NIXL could not read: {error}") from None

    def _finish(self, handle: int, timeout_s: float) -> None:
        state = self._agent.postXferReq(handle, b"")

        def is_over() -> bool:
            nonlocal state
            if state == self._nixl.NIXL_IN_PROG:
                state = self._agent.getXferStatus(handle)
            return bool(state != self._nixl.NIXL_IN_PROG)

        if not until(is_over, timeout_s, self._given_up, longest_pause_s=_LONGEST_PAUSE_S):
            self.destroy()  # the fence, before anybody else gets the blocks
            raise TransferTimeout(f"a read by NIXL was given up, or took longer than {timeout_s} s")
        if state != self._nixl.NIXL_SUCCESS:
            raise StreamLost(f"NIXL could not read: {state}")


def load_library() -> ModuleType:
    """Return NIXL's bindings. Raises TransferFailed where no package is installed."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for package in _PACKAGES:
        try:
            importlib.import_module(package)
            return importlib.import_module(f"{package}._bindings")
        except ImportError:
            continue
    raise TransferFailed("NIXL is not installed")
