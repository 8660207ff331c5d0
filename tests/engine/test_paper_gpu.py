"""What a device on paper finds: each mistake that CUDA would let pass, and none where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from paper_gpu.device import Devices, is_possible, paper_gpu

pytestmark = pytest.mark.skipif(not is_possible(), reason="no compiler, or there is a GPU")


@pytest.fixture
def gpu() -> Iterator[Devices]:
    with paper_gpu(2) as devices:
        yield devices


def on_device(*shape: int, device: int = 0) -> torch.Tensor:
    return torch.zeros(*shape, device=f"cuda:{device}")


def stream() -> Any:
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


def test_it_computes_as_a_host_does(gpu: Devices) -> None:
    chance = torch.Generator().manual_seed(0)
    a, b = torch.randn(5, 7, generator=chance), torch.randn(7, 3, generator=chance)
    there = torch.nn.functional.softmax(a.cuda() @ b.cuda(), dim=-1)
    assert there.is_cuda
    assert there.device == torch.device("cuda", 0)
    torch.testing.assert_close(there.cpu(), torch.nn.functional.softmax(a @ b, dim=-1))
    there[1:3, [0, 2]] = 7.0
    assert there.cpu()[1:3, 2].tolist() == [7.0, 7.0]
    assert torch.tensor([3, 4], device="cuda").tolist() == [3, 4]


def test_operands_on_two_devices_are_refused(gpu: Devices) -> None:
    with pytest.raises(RuntimeError, match="same device"):
        on_device(3) + torch.ones(3)
    with pytest.raises(RuntimeError, match="same device"):
        on_device(3) + on_device(3, device=1)
    assert (on_device(3) + torch.tensor(2.0)).tolist() == [2.0] * 3  # a number may lie anywhere
    copied = on_device(3, device=1)
    copied.copy_(on_device(3) + 1)
    assert copied.tolist() == [1.0] * 3


def test_what_is_not_written_is_no_number(gpu: Devices) -> None:
    assert torch.empty(4, device="cuda").isnan().all()
    assert torch.empty(2, dtype=torch.int64, device="cuda").tolist() == [-1, -1]


def test_waits_are_counted(gpu: Devices) -> None:
    here = torch.zeros(8, pin_memory=True)
    there = here.to("cuda", non_blocking=True)
    before = gpu.order.num_waits
    there.add_(1)
    here.copy_(there, non_blocking=True)
    assert gpu.order.num_waits == before
    there.sum().item()
    there[there > 0]
    torch.zeros(8).to("cuda", non_blocking=False)
    torch.cuda.synchronize()
    assert gpu.order.num_waits == before + 4


def test_what_is_read_before_it_is_there_is_no_number(gpu: Devices) -> None:
    there, here = on_device(4) + 3, torch.zeros(4, pin_memory=True)
    here.copy_(there, non_blocking=True)
    sent = torch.cuda.current_stream().record_event()
    assert here.isnan().all()
    there.add_(1)
    assert not sent.query()  # nor is it there as soon as it is asked for
    sent.synchronize()
    assert here.tolist() == [3.0] * 4
    assert (on_device(4) + 3).to("cpu", non_blocking=True).isnan().all()


def test_pinned_memory_that_is_written_before_it_is_copied_is_found(gpu: Devices) -> None:
    here = torch.full((4,), 3.0, pin_memory=True)
    there = here.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    here.fill_(4.0)
    assert there.tolist() == [3.0] * 4
    assert not gpu.gpu.complaints
    there.copy_(here, non_blocking=True)
    here.fill_(5.0)
    torch.cuda.synchronize()
    assert gpu.gpu.complaints == ["pinned memory (4,) was written before it was copied"]
    gpu.gpu.complaints.clear()


def test_streams_that_do_not_wait_for_each_other_race(gpu: Devices) -> None:
    shared, other = on_device(4), stream()
    shared.add_(1)
    with torch.cuda.stream(other), pytest.raises(AssertionError, match=r"races with aten\.add_"):
        shared.mul(2)
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        shared.mul_(2)
    with pytest.raises(AssertionError, match=r"aten\.add_.* races with aten\.mul_"):
        shared.add_(1)
    torch.cuda.current_stream().wait_event(other.record_event())
    shared.add_(1)
    assert shared.tolist() == [3.0] * 4


def test_parts_of_one_memory_do_not_race(gpu: Devices) -> None:
    shared, other = on_device(8), stream()
    torch.cuda.synchronize()
    shared[:4].add_(1)
    with torch.cuda.stream(other):
        shared[4:].add_(2)
        with pytest.raises(AssertionError, match="races"):
            shared[3:].add_(2)
    torch.cuda.synchronize()


@pytest.mark.parametrize("is_told", [False, True])
def test_memory_that_is_freed_while_another_stream_uses_it_is_found(gpu: Devices, is_told: bool) -> None:
    used, other = on_device(4), stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(other):
        used.add_(1)
    if is_told:
        used.record_stream(other)
    del used
    found = [] if is_told else ["memory was freed while aten.add_.Tensor used it on another stream"]
    assert gpu.gpu.complaints == found
    gpu.gpu.complaints.clear()


def test_a_graph_does_again_what_was_captured_and_nothing_before(gpu: Devices) -> None:
    count, source = on_device(3), torch.zeros(3, pin_memory=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        count.add_(1)
        tripled = (count * 3).view(3, 1)
        count.copy_(source, non_blocking=True)
    assert count.tolist() == [0.0] * 3
    assert tripled.isnan().all()
    graph.replay()
    assert tripled.flatten().tolist() == [3.0] * 3
    source.fill_(4.0)
    graph.replay()
    assert tripled.flatten().tolist() == [3.0] * 3
    assert count.tolist() == [4.0] * 3


def test_what_waits_within_a_capture_is_refused(gpu: Devices) -> None:
    there, pinned = on_device(3), torch.zeros(3, pin_memory=True)

    def in_capture(work: object) -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            work()  # type: ignore[operator]

    for work in (
        lambda: there.sum().item(),
        lambda: there[there > 0],
        lambda: there.cpu(),
        lambda: there.copy_(torch.ones(3)),
        lambda: there.copy_(torch.ones(3), non_blocking=True),
        lambda: torch.tensor([1.0], device="cuda"),
        lambda: pinned.copy_(there, non_blocking=True),
        lambda: torch.empty(3, pin_memory=True),
        torch.cuda.synchronize,
        torch.cuda.current_stream().record_event().synchronize,
    ):
        with pytest.raises(RuntimeError, match="within a capture"):
            in_capture(work)
    in_capture(lambda: there.copy_(pinned, non_blocking=True))


def test_a_graph_whose_memory_is_gone_is_not_replayed(gpu: Devices) -> None:
    read, graph = on_device(3), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = read + torch.ones(3, device="cuda")  # its own memory stays
    graph.replay()
    assert kept.tolist() == [1.0] * 3
    del read
    with pytest.raises(AssertionError, match="uses memory that was freed"):
        graph.replay()


def test_nothing_is_left_when_it_is_over() -> None:
    with paper_gpu():
        assert torch.cuda.is_available()
    assert not torch.cuda.is_available()
    assert torch.empty(2).device.type == "cpu"
    with pytest.raises((RuntimeError, AssertionError)):
        torch.empty(2, device="cuda")
    found = paper_gpu()
    found.__enter__()
    here = torch.zeros(2, pin_memory=True)
    here.to("cuda", non_blocking=True)
    here.fill_(1.0)
    torch.cuda.synchronize()
    with pytest.raises(AssertionError, match="was written before it was copied"):
        found.__exit__(None, None, None)
