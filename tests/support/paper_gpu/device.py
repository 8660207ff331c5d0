"""A CUDA device on paper: `paper_gpu()` has PyTorch without CUDA believe in some, which compute on the host.

What runs on it is the code that runs on a GPU, kernels in Triton's interpreter. It proves that tensors lie where they
are needed, that nothing waits within a capture, that nothing is read before it is there or overwritten while it is
read, and what steps say; it shows nothing of speed, nor of what only hardware does.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_leaves, tree_map

from pagewire.engine import kv_cache
from pagewire.engine.ranks import collective_sum
from pagewire.kvtransfer.transports import communicator, device_pool
from paper_gpu.collectives import PaperNccl
from paper_gpu.driver import PaperDriver, at
from paper_gpu.graphs import Capturing, PaperGraph
from paper_gpu.order import Clock, Order, PaperEvent, PaperStream, learn
from paper_gpu.tensors import Gpu, PaperTensor, on_host

aten = torch.ops.aten
NUM_PROCESSORS = 2
BYTES = 1 << 30
GUARD = "PAGEWIRE_TEST_GUARD"  # of the environment: where it was built


def is_possible() -> bool:
    """Whether this machine has what it takes: a compiler, and no GPU."""
    return not torch.cuda.is_available() and shutil.which("c++") is not None


class Current(threading.local):
    """A thread's device, and its stream of each where it is not the default one."""

    def __init__(self) -> None:
        self.index = 0
        self.streams: dict[int, PaperStream] = {}


class Devices:
    """What `torch.cuda` says of `count` devices."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.order = Order()
        self.capturing = Capturing()
        self.order.forbids_waits = lambda: self.capturing.graph is not None
        PaperStream.order = self.order
        self._defaults = [PaperStream(index) for index in range(count)]
        self._current = Current()
        self.gpu = Gpu(self.order, self.capturing, self.stream_of)

    @property
    def index(self) -> int:
        """The calling thread's device."""
        return self._current.index

    def stream_of(self, device: Any = None) -> PaperStream:
        """Return the calling thread's stream of a device."""
        index = _index_of(device, self.index)
        return self._current.streams.get(index, self._defaults[index])

    @contextlib.contextmanager
    def on(self, device: Any) -> Iterator[None]:
        """In the place of `torch.cuda.device`."""
        before = self.index
        self.set(device)
        try:
            yield
        finally:
            self._current.index = before

    def set(self, device: Any) -> None:
        """In the place of `torch.cuda.set_device`."""
        index = _index_of(device, self.index)
        assert index < self.count, f"there is no device {index}"
        self._current.index = index

    @contextlib.contextmanager
    def in_stream(self, stream: PaperStream | None) -> Iterator[None]:
        """In the place of `torch.cuda.stream`."""
        if stream is None:
            yield
            return
        index = stream.device.index
        with self.on(index):
            before = self.stream_of(index)
            self._current.streams[index] = stream
            try:
                yield
            finally:
                self._current.streams[index] = before

    def synchronize(self, device: Any = None) -> None:
        """In the place of `torch.cuda.synchronize`: of all streams that there are."""
        everything: Clock = {}
        for stream in PaperStream.all():
            if stream.device.index == _index_of(device, self.index):
                learn(everything, stream.clock)
        self.order.wait(everything)

    def properties(self, device: Any = None) -> Any:
        """In the place of `torch.cuda.get_device_properties`."""
        return types.SimpleNamespace(
            name="paper", major=9, minor=0, multi_processor_count=NUM_PROCESSORS, total_memory=BYTES,
            uuid=f"00000000-0000-0000-0000-00000000000{_index_of(device, self.index)}",
        )  # fmt: skip


@contextlib.contextmanager
def paper_gpu(count: int = 1) -> Iterator[Devices]:
    """Have `count` devices. What they complain of at the end, and could not raise, fails."""
    _guard()
    _device_constructors()  # remembered as they are, before any of them is patched
    devices = Devices(count)
    gpu = devices.gpu
    PaperTensor.gpu = gpu
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for name, func in (
        ("empty.memory_format", aten.empty.memory_format),
        ("empty_strided", aten.empty_strided.default),
    ):
        library.impl(name, _allocating(gpu, func), "CUDA", allow_override=True)
    values: dict[str, Any] = {
        "is_available": lambda: True, "device_count": lambda: count, "is_initialized": lambda: True,
        "current_device": lambda: devices.index, "set_device": devices.set, "device": devices.on,
        "stream": devices.in_stream, "Stream": PaperStream, "Event": PaperEvent, "current_stream": devices.stream_of,
        "synchronize": devices.synchronize,
        "get_device_properties": devices.properties, "get_device_capability": lambda device=None: (9, 0),
        "mem_get_info": lambda device=None: (BYTES, BYTES), "CUDAGraph": PaperGraph, "graph": devices.capturing.into,
        "graph_pool_handle": lambda: (0, 0), "empty_cache": lambda: None, "_lazy_init": lambda: None,
        "is_current_stream_capturing": lambda: devices.capturing.graph is not None,
    }  # fmt: skip
    with contextlib.ExitStack() as patched:
        for name, value in values.items():
            patched.enter_context(mock.patch.object(torch.cuda, name, value))
        for name in ("empty", "zeros", "empty_like", "full", "ones"):
            patched.enter_context(mock.patch.object(torch, name, _pinning(gpu, getattr(torch, name))))
        for name in ("tensor", "as_tensor"):
            patched.enter_context(mock.patch.object(torch, name, _sending(gpu, getattr(torch, name))))
        patched.enter_context(mock.patch.object(torch.Tensor, "pin_memory", lambda one: gpu.pin(one.clone())))
        patched.enter_context(mock.patch.object(torch.Tensor, "is_pinned", gpu.is_pinned))
        # Modules that are moved get parameters anew: an old one cannot become a tensor of another class.
        patched.callback(torch.__future__.set_overwrite_module_params_on_conversion, False)
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        for module in (communicator, collective_sum):
            patched.enter_context(mock.patch.object(module, "nccl", PaperNccl))
        for module in (kv_cache, device_pool):
            patched.enter_context(mock.patch.object(module, "CudaDriver", PaperDriver))
        patched.enter_context(_interpreted(devices))
        try:
            yield devices
        finally:
            library._destroy()
    assert not gpu.complaints, gpu.complaints


def _allocating(gpu: Gpu, func: Any) -> Any:
    def allocate(*args: Any, **kwargs: Any) -> PaperTensor:
        return gpu.empty(func, args, kwargs)

    return allocate


def _pinning(gpu: Gpu, make: Any) -> Any:
    def made(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        tensor: torch.Tensor = make(*args, **kwargs)
        return gpu.pin(tensor) if pin_memory else tensor

    return made


def _sending(gpu: Gpu, make: Any) -> Any:
    """What is made of numbers is made on the host, and sent: torch does so too, past all dispatch."""

    def made(data: Any, *, device: Any = None, **kwargs: Any) -> torch.Tensor:
        if (said := getattr(data, "__cuda_array_interface__", None)) is not None:
            return gpu.allocate(at(said["data"][0], said["shape"]), torch.device(device))
        if device is None or torch.device(device).type != "cuda":
            plain: torch.Tensor = make(data, **kwargs, device=device)
            return plain
        here: torch.Tensor = make(data, **kwargs, device="cpu")
        return here.to(device)

    return made


@contextlib.contextmanager
def _interpreted(devices: Devices) -> Iterator[None]:
    """Have the interpreter take a device's tensors, and launch on its current stream."""
    try:
        from triton.runtime.interpreter import GridExecutor  # noqa: PLC0415
    except ImportError:
        yield
        return
    from pagewire.kernels.gpu import small_linear  # noqa: PLC0415
    from pagewire.kernels.gpu.tiles import Processor  # noqa: PLC0415

    call = GridExecutor.__call__

    def launched(executor: Any, *args: Any, **kwargs: Any) -> None:
        here: list[Any] = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not any(isinstance(leaf, PaperTensor) for leaf in here):
            call(executor, *args, **kwargs)
            return
        name, device = executor.fn.__name__, torch.device("cuda", devices.index)
        if any(leaf.device != device for leaf in here):
            raise RuntimeError(
                f"{name} is launched on {device} and given {sorted({str(leaf.device) for leaf in here})}"
            )
        # What a kernel writes nobody says: all of it.
        do = functools.partial(call, executor, *tree_map(on_host, args), **tree_map(on_host, kwargs))
        devices.gpu.launch(name, do, device, here, here)

    large = small_linear.Tile(rows=128, lanes=32, depth=1)  # the interpreter takes its time for each
    with (
        mock.patch.object(GridExecutor, "__call__", launched),
        mock.patch.object(Processor, "of", return_value=Processor((9, 0), NUM_PROCESSORS)),  # it overlaps nothing
        mock.patch.object(small_linear.Tile, "choose", return_value=large),
    ):
        yield


def _guard() -> None:
    """Load what `guard.cpp` says, compiled here or by a process that this one descends from."""
    if "library" in _loaded:
        os.environ[GUARD] = _loaded["library"]._name
        return
    if GUARD not in os.environ:
        torch_folder, built = Path(torch.__file__).parent, Path(tempfile.mkdtemp()) / "guard.so"
        atexit.register(shutil.rmtree, built.parent, ignore_errors=True)
        subprocess.run(
            ["c++", "-std=c++20", "-shared", "-fPIC", f"-I{torch_folder / 'include'}",
             str(Path(__file__).with_name("guard.cpp")), "-o", str(built), f"-L{torch_folder / 'lib'}", "-lc10"],
            check=True,
        )  # fmt: skip
        os.environ[GUARD] = str(built)
    _loaded["library"] = ctypes.CDLL(os.environ[GUARD])


_loaded: dict[str, ctypes.CDLL] = {}


def _index_of(device: Any, current: int) -> int:
    if device is None:
        return current
    index = device if isinstance(device, int) else torch.device(device).index
    return current if index is None else index
