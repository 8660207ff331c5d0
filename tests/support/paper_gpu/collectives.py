"""NCCL on paper: gloo carries the numbers, and a stream of the group's own keeps NCCL's order.

A call begins behind the caller's current stream and ends on the group's; who waits for its work has the current stream
wait, and not the host (`ProcessGroupNCCL`). What is under way hangs where gloo does.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch

from pagewire.kvtransfer.transports.process_group import gloo
from paper_gpu.order import PaperStream, current
from paper_gpu.tensors import PaperTensor


class PaperWork:
    """What a call returns; its tensors are used until it is waited for, and longer."""

    def __init__(self, work: Any, stream: PaperStream, timeout_s: float) -> None:
        self._work = work
        self._stream = stream
        self._timeout_s = timeout_s

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Have the current stream wait; the numbers are there when it returns."""
        self._work.wait(timeout or timedelta(seconds=self._timeout_s))
        current(self._stream.device).wait_stream(self._stream)
        return True


class PaperNccl:
    """Satisfies `ProcessGroup`."""

    def __init__(self, store: Any, rank: int, size: int, device: torch.device, timeout_s: float, **_: Any) -> None:
        self._group = gloo(store, rank, size, "127.0.0.1", timeout_s)
        self._stream = PaperStream(device)
        self._timeout_s = timeout_s

    def send(self, tensors: list[PaperTensor], rank: int, tag: int) -> PaperWork:
        """See `ProcessGroup`."""
        return self._begun(tensors, "send", lambda host: self._group.send(host, rank, tag), self._stream, writes=False)

    def recv(self, tensors: list[PaperTensor], rank: int, tag: int) -> PaperWork:
        """See `ProcessGroup`."""
        return self._begun(tensors, "recv", lambda host: self._group.recv(host, rank, tag), self._stream, writes=True)

    def allreduce(self, tensors: list[PaperTensor], options: Any) -> PaperWork | None:
        """See `ProcessGroup`; as one that is not asynchronous, on the current stream in its turn, it returns None."""

        def begin(host: list[torch.Tensor]) -> Any:
            return self._group.allreduce(host, options)

        work = self._begun(
            tensors, "allreduce", begin, self._stream if options.asyncOp else self._current(), writes=True
        )
        if options.asyncOp:
            return work
        work.wait()
        return None

    def abort(self) -> None:
        """See `ProcessGroup`."""
        self._group.abort()

    def _begun(
        self, tensors: list[PaperTensor], what: str, begin: Any, stream: PaperStream, *, writes: bool
    ) -> PaperWork:
        for tensor in tensors:
            if tensor.device != stream.device:
                raise RuntimeError(f"{what}: a tensor on {tensor.device}, a communicator on {stream.device}")
        stream.wait_stream(self._current())
        for tensor in tensors:
            tensor.record_stream(stream)  # torch keeps it until NCCL is done with it
            PaperTensor.gpu.use(tensor, stream, writes=writes, what=f"NCCL's {what}")
        return PaperWork(begin([tensor.host for tensor in tensors]), stream, self._timeout_s)

    def _current(self) -> PaperStream:
        return current(self._stream.device)
