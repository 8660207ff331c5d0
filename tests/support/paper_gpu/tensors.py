"""Tensors of a paper GPU: their numbers lie on the host, and every op on them is held to what CUDA's rules are.

An op is a launch on the current stream of its device. One whose operands lie on several devices is refused as torch
refuses it; one that tells the host a number waits. Copies from pinned memory are checked when they are known to be
done, against what lay there when they were begun; what is copied to pinned memory arrives there no sooner than the host
has waited for it. Memory that is allocated and not written is NaN, or -1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from paper_gpu import driver
from paper_gpu.graphs import Capturing, PaperGraph
from paper_gpu.memory import Memory
from paper_gpu.order import Order, PaperStream

aten = torch.ops.aten
CPU = torch.device("cpu")

# Ops whose outcome has a size, or is a number, that only the device knows.
_TELLING = {
    aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default,
    aten.repeat_interleave.Tensor, aten._unique2.default, aten.unique_consecutive.default, aten.unique_dim.default,
    aten.is_nonzero.default, aten.bincount.default, aten.item.default,
}  # fmt: skip
_INDEXING = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}
# Decomposed they would say what a CPU does; they are one launch here.
_WHOLE = {
    aten.linear.default, aten.matmul.default, aten.scaled_dot_product_attention.default, aten.softmax.int,
    aten.log_softmax.int, aten.layer_norm.default, aten.rms_norm.default, aten.embedding.default,
}  # fmt: skip
# What a CPU does not do as a GPU does; and what is not written is no number.
_ONLY_THERE: dict[Any, Callable[..., Any]] = {
    aten.histc.default: lambda x, *args, **kwargs: aten.histc.default(x.double(), *args, **kwargs).to(x.dtype),
    **{
        empty: functools.partial(lambda empty, *args, **kwargs: _poisoned(empty(*args, **kwargs)), empty)
        for empty in (aten.empty_like.default, aten.new_empty.default, aten.new_empty_strided.default)
    },
}


class PaperTensor(torch.Tensor):
    """`host` holds the numbers, on the host; `memory` is whose they are."""

    host: torch.Tensor
    memory: Memory
    gpu: Gpu

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: torch.Tensor, memory: Memory, device: torch.device) -> PaperTensor:
        """Wrap a host tensor."""
        with torch.inference_mode(mode=False):  # views of it get what such tensors have not
            made: PaperTensor = torch.Tensor._make_wrapper_subclass(
                cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
                device=device,
            )  # fmt: skip
        made.host, made.memory = inner, memory
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Do an op; see `Gpu.dispatch`."""
        with torch._C.DisableTorchFunction():  # such as has another default device
            return cls.gpu.dispatch(func, args, kwargs or {})

    def __getitem__(self, index: Any) -> torch.Tensor:
        """As torch's; lists of numbers are sent over."""
        return super().__getitem__(_sent(index, self.device))

    def __setitem__(self, index: Any, value: Any) -> None:
        """As torch's; lists of numbers are sent over."""
        super().__setitem__(_sent(index, self.device), value)

    def data_ptr(self) -> int:
        """Return where the numbers lie."""
        return self.host.data_ptr()

    def tolist(self) -> Any:
        """Return the numbers, which are waited for."""
        return self.cpu().tolist()

    def record_stream(self, stream: Any) -> None:
        """As torch's."""
        self.memory.record_stream(stream)

    def __repr__(self) -> str:  # type: ignore[override]
        """Show it without waiting."""
        return f"PaperTensor({tuple(self.shape)}, {self.dtype}, {self.device})"


class Gpu:
    """What ops are held to."""

    def __init__(self, order: Order, capturing: Capturing, streams: Callable[[torch.device], PaperStream]) -> None:
        self.complaints: list[str] = []
        self.num_launches = 0
        self._order = order
        self._capturing = capturing
        self._stream_of = streams
        self._pinned: list[torch.Tensor] = []  # kept, so that no other memory lies where one lay

    # What is allocated -------------------------------------------------------------------------------------------

    def empty(self, func: Any, args: Any, kwargs: Any) -> PaperTensor:
        """Allocate on a device, by an op that is told its sizes."""
        device = _numbered(kwargs.pop("device"))
        kwargs.pop("pin_memory", None)
        with torch._C.DisableTorchFunction():
            made = func(*args, **kwargs, device=CPU)
            if made.dtype is torch.uint8 and made.dim() == 1 and made.numel() >= driver.LEAST_BYTES:
                made = driver.host_memory(made.numel())  # as a pool is made
            return self.allocate(_poisoned(made), device)

    def allocate(self, inner: torch.Tensor, device: torch.device) -> PaperTensor:
        """Return a tensor in memory of its own, of the current stream."""
        memory = Memory(self._stream_of(device), self.complaints.append)
        if (graph := self._recording(device)) is not None:
            graph.adopt(memory)
        return PaperTensor(inner, memory, device)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Take a host tensor for pinned memory from now on."""
        if self._capturing.graph is not None:
            raise RuntimeError("host memory is pinned within a capture")
        self._pinned.append(tensor)
        return tensor

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether a host tensor lies in pinned memory."""
        storage = tensor.untyped_storage().data_ptr()
        return any(storage == pinned.untyped_storage().data_ptr() for pinned in self._pinned)

    # What is launched --------------------------------------------------------------------------------------------

    def dispatch(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Do an op some of whose operands, or whose outcome, are on a device."""
        if func not in _WHOLE and _is_composite(func):
            done = func.decompose(*args, **kwargs)
            if done is not NotImplemented:
                return done
        if func is aten._to_copy.default:
            return self._to_copy(*args, **kwargs)
        if func is aten.copy_.default:
            return self._copy(*args, **kwargs)
        device = self._device_of(func, args, kwargs)
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": CPU}
        here = _tensors((args, kwargs))
        host_args, host_kwargs = tree_map(on_host, args), tree_map(on_host, kwargs)
        if _is_view(func):
            return self._wrapped(func(*host_args, **host_kwargs), here, device)
        if func in _TELLING or (func in _INDEXING and any(map(_is_mask, tree_leaves(args[1])))):
            self._order.wait(self._stream_of(device).clock)
        do = functools.partial(_ONLY_THERE.get(func, func), *host_args, **host_kwargs)
        written = _written(func, args, kwargs)
        returns = functools.partial(_sketch, func, host_args, host_kwargs) if not written else lambda: written[0].host
        return self.launch(str(func), do, device, here, written, returns)

    def launch(
        self,
        name: str,
        do: Callable[[], Any],
        device: torch.device,
        here: Sequence[PaperTensor],
        written: Sequence[PaperTensor],
        returns: Callable[[], Any] = lambda: None,
    ) -> Any:
        """Do what reads the tensors `here` and writes those that are `written`, and wrap what it returns.

        Within a capture it is kept; `returns` makes what it would return, without doing it.
        """
        writes = {id(tensor) for tensor in written}
        if (graph := self._recording(device)) is not None:
            made = returns()
            uses = [(tensor.host, tensor.memory, id(tensor) in writes) for tensor in here]
            graph.keep(functools.partial(_do_again, do, made), uses, name)
        else:
            with self._order.lock:
                self._note(here, writes, device, name)
                made = do()
        return self._wrapped(made, here, device)

    def _note(self, here: Iterable[PaperTensor], written: set[int], device: torch.device, name: str) -> PaperStream:
        """Launch on the current stream; return it."""
        stream = self._stream_of(device)
        stamp = stream.launch()
        self.num_launches += 1
        for tensor in here:
            tensor.memory.touch(tensor.host, stamp, stream.clock, writes=id(tensor) in written, what=name)
        return stream

    def _recording(self, device: torch.device) -> PaperGraph | None:
        return self._capturing.graph if self._stream_of(device) is self._capturing.stream else None

    def _wrapped(self, made: Any, here: Iterable[PaperTensor], device: torch.device) -> Any:
        """Wrap host tensors: what is one of `here`, or lies in its memory, as that; else as memory of its own."""
        known = {id(tensor.host): tensor for tensor in here}
        places = {tensor.host.untyped_storage().data_ptr(): tensor.memory for tensor in here}

        def wrap(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            if id(leaf) in known:
                return known[id(leaf)]
            place = leaf.untyped_storage().data_ptr()  # 0 for nothing
            return (
                PaperTensor(leaf, places[place], device) if place and place in places else self.allocate(leaf, device)
            )

        return tree_map(wrap, made)

    def _device_of(self, func: Any, args: Any, kwargs: Any) -> torch.device:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if func in _INDEXING and tensors[0].is_cuda and any(not index.is_cuda and index.dim() for index in tensors[1:]):
            self._order.wait(self._stream_of(tensors[0].device).clock)  # indices are sent over
            return tensors[0].device
        devices = {tensor.device for tensor in tensors if tensor.is_cuda or tensor.dim()}  # a number lies anywhere
        if kwargs.get("device") is not None:
            devices.add(_numbered(kwargs["device"]))
        if len(devices) > 1:
            found = ", ".join(sorted(map(str, devices)))
            raise RuntimeError(f"{func}: expected all tensors to be on the same device, found {found}")
        return devices.pop()

    # What is copied ----------------------------------------------------------------------------------------------

    def _to_copy(
        self,
        source: torch.Tensor,
        *,
        dtype: torch.dtype | None = None,
        device: Any = None,
        non_blocking: bool = False,
        memory_format: torch.memory_format | None = None,
        **_: Any,
    ) -> torch.Tensor:
        device = source.device if device is None else _numbered(device)
        like = on_host(source)
        made = torch.empty_like(like, dtype=dtype or like.dtype, memory_format=memory_format or torch.preserve_format)
        _poisoned(made)
        if device.type == "cpu":
            return self._copy(self.pin(made) if non_blocking else made, source, non_blocking)  # as torch does
        return self._copy(self.allocate(made, device), source, non_blocking)

    def _copy(self, target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        with self._order.lock:
            if isinstance(target, PaperTensor) and isinstance(source, PaperTensor):
                self._between(target, source)
            elif isinstance(target, PaperTensor):
                self._in(target, source, non_blocking)
            else:
                assert isinstance(source, PaperTensor)
                self._out(target, source, non_blocking)
        return target

    def use(self, tensor: PaperTensor, stream: PaperStream, *, writes: bool, what: str) -> None:
        """Note that something else than an op reads or writes a tensor, on a stream."""
        with self._order.lock:
            tensor.memory.touch(tensor.host, stream.launch(), stream.clock, writes=writes, what=what)

    def _between(self, target: PaperTensor, source: PaperTensor) -> None:
        do = functools.partial(target.host.copy_, source.host)
        if target.device == source.device:
            self.launch("a copy", do, target.device, [target, source], [target], lambda: target.host)
            return
        there, here = self._stream_of(target.device), self._stream_of(source.device)
        here.wait_stream(there)
        self._note([target, source], {id(target)}, source.device, "a copy between devices")
        there.wait_stream(here)
        do()

    def _in(self, target: PaperTensor, source: torch.Tensor, non_blocking: bool) -> None:
        is_pinned = source.numel() > 0 and self.is_pinned(source)
        name = "a copy to the device"
        if (graph := self._recording(target.device)) is not None:
            if not (is_pinned and non_blocking):
                raise RuntimeError("pageable memory is copied, or waited for, within a capture")
            inner = target.host
            graph.keep(lambda: inner.copy_(source), [(inner, target.memory, True)], name)
            return
        stream = self._note([target], {id(target)}, target.device, name)
        target.host.copy_(source)
        if not non_blocking:
            self._order.wait(stream.clock)
        elif is_pinned:
            before = source.clone()

            def check() -> None:
                if not _same(source, before):
                    self.complaints.append(f"pinned memory {tuple(source.shape)} was written before it was copied")

            self._order.when_done(stream.last, check)

    def _out(self, target: torch.Tensor, source: PaperTensor, non_blocking: bool) -> None:
        if self._recording(source.device) is not None:
            raise RuntimeError("the device is read within a capture")
        stream = self._note([source], set(), source.device, "a copy to the host")
        if not (non_blocking and self.is_pinned(target)):
            target.copy_(source.host)
            self._order.wait(stream.clock)
            return
        read = source.host.clone()
        self._order.check(stream.clock)  # of what was copied from there before it is overwritten
        _poisoned(target)
        self._order.when_known(stream.last, functools.partial(target.copy_, read))


def _sent(index: Any, device: torch.device) -> Any:
    if isinstance(index, tuple):
        return tuple(_sent(each, device) for each in index)
    if isinstance(index, list | range | np.ndarray):
        return torch.as_tensor(index).to(device)
    return index


def _do_again(do: Callable[[], Any], made: Any) -> None:
    for kept, new in zip(tree_leaves(made), tree_leaves(do()), strict=True):
        if isinstance(kept, torch.Tensor) and kept is not new:
            kept.copy_(new)


def _sketch(func: Any, args: Any, kwargs: Any) -> Any:
    """Return what an op would, of its shape and NaN throughout, without doing it."""
    on_meta = {**kwargs, "device": torch.device("meta")} if kwargs.get("device") is not None else kwargs

    def like(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return _poisoned(torch.empty_strided(leaf.size(), leaf.stride(), dtype=leaf.dtype))

    return tree_map(like, func(*tree_map(_meta, args), **tree_map(_meta, on_meta)))


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8))


def _poisoned(tensor: torch.Tensor) -> torch.Tensor:
    """Fill with NaN, or -1."""
    if tensor.numel():
        value: float = torch.nan if tensor.dtype.is_floating_point else -1 if tensor.dtype.is_signed else 255
        tensor.fill_(value)
    return tensor


def on_host(leaf: Any) -> Any:
    """Return the host tensor of one on a device, and anything else as it is."""
    return leaf.host if isinstance(leaf, PaperTensor) else leaf


def _meta(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return torch.empty_strided(leaf.size(), leaf.stride(), dtype=leaf.dtype, device="meta")


def _numbered(named: Any) -> torch.device:
    device = torch.device(named)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _is_mask(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dtype in (torch.bool, torch.uint8)


def _is_composite(func: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"))


def _is_view(func: Any) -> bool:
    returns = func._schema.returns
    return bool(returns) and all(each.alias_info is not None and not each.alias_info.is_write for each in returns)


def _tensors(of: Any) -> list[PaperTensor]:
    return [leaf for leaf in tree_leaves(of) if isinstance(leaf, PaperTensor)]


def _written(func: Any, args: Any, kwargs: Any) -> list[PaperTensor]:
    """Return what an op's schema says that it writes."""
    found: list[PaperTensor] = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        found += _tensors(value)
    return found
