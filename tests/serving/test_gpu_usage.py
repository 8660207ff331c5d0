"""What a pod shows of its GPU: by a driver that is made up, and by the real one where there is a device.

The made-up one proves what becomes of each answer and error of NVML, not that NVML gives them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from pagewire.serving import gpu_usage
from pagewire.serving.gpu_usage import GpuUsage

UUID = "GPU-8f3c"
NAMES = ("device_utilization", "device_memory_used_bytes", "device_memory_total_bytes")


class NVMLError(Exception):
    """As pynvml has it: with a number, told by its text."""

    def __init__(self, value: int, text: str) -> None:
        super().__init__(text)
        self.value = value


NOT_SUPPORTED, GONE, TIMEOUT = NVMLError(3, "Not Supported"), NVMLError(15, "GPU is lost"), NVMLError(10, "Timeout")


class MadeUpDriver:
    """A `pynvml` of one device. `fails` is what each question is answered with while it is there."""

    NVMLError = NVMLError
    NVML_ERROR_NOT_SUPPORTED = 3

    def __init__(self) -> None:
        self.fails: dict[str, NVMLError] = {}
        self.num_handles = 0

    def _may_fail(self, question: str) -> None:
        if error := self.fails.get(question):
            raise error

    def nvmlInit(self) -> None:
        self._may_fail("init")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self._may_fail("handle")
        assert uuid == UUID
        self.num_handles += 1
        return f"handle {self.num_handles}"

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:
        self._may_fail("utilization")
        assert handle == f"handle {self.num_handles}"
        return SimpleNamespace(gpu=37, memory=12)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        self._may_fail("memory")
        assert handle == f"handle {self.num_handles}"
        return SimpleNamespace(used=5 << 30, total=80 << 30, free=75 << 30)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> MadeUpDriver:
    driver = MadeUpDriver()
    monkeypatch.setattr(gpu_usage, "pynvml", driver)
    return driver


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[str, str]]]:
    """Return what was logged since the last call."""
    caplog.set_level(logging.INFO, logger=gpu_usage.__name__)

    def since() -> list[tuple[str, str]]:
        lines = [(record.levelname, record.getMessage()) for record in caplog.records]
        caplog.clear()
        return lines

    return since


Said = Callable[[], list[tuple[str, str]]]


def shown(usage: GpuUsage) -> dict[str, float]:
    samples = list(usage.samples())
    assert all(sample.labels == {"device": UUID} for sample in samples)
    return {sample.name: sample.value for sample in samples}


def test_a_device_shows_how_busy_and_how_full_it_is(driver: MadeUpDriver, said: Said) -> None:
    usage = GpuUsage(UUID)
    for _ in range(2):
        assert shown(usage) == dict(zip(NAMES, (0.37, 5 << 30, 80 << 30), strict=True))
    assert driver.num_handles == 1
    assert said() == []


def test_memory_is_shown_where_utilization_is_not_supported(driver: MadeUpDriver, said: Said) -> None:
    driver.fails["utilization"] = NOT_SUPPORTED
    usage = GpuUsage(UUID)
    for _ in range(3):
        assert tuple(shown(usage)) == NAMES[1:]
    assert driver.num_handles == 1
    assert said() == [("WARNING", f"utilization of {UUID} is not known: Not Supported")]


def test_utilization_is_shown_where_memory_is_not(driver: MadeUpDriver) -> None:
    driver.fails["memory"] = TIMEOUT
    assert tuple(shown(GpuUsage(UUID))) == NAMES[:1]


@pytest.mark.parametrize("question", ["utilization", "memory"])
def test_an_error_that_passes_leaves_nothing_behind(driver: MadeUpDriver, said: Said, question: str) -> None:
    usage = GpuUsage(UUID)
    driver.fails[question] = TIMEOUT
    assert len(shown(usage)) == len(shown(usage)) < 3
    assert said() == [("WARNING", f"{question} of {UUID} is not known: Timeout")]
    del driver.fails[question]
    assert tuple(shown(usage)) == NAMES
    assert said() == [("INFO", f"{question} of {UUID} is known again")]
    driver.fails[question] = TIMEOUT
    shown(usage)
    assert said() == [("WARNING", f"{question} of {UUID} is not known: Timeout")]


def test_another_cause_is_said_too(driver: MadeUpDriver, said: Said) -> None:
    usage = GpuUsage(UUID)
    for cause in (TIMEOUT, TIMEOUT, GONE, GONE):
        driver.fails["memory"] = cause
        shown(usage)
    assert [line for _, line in said()] == [
        f"memory of {UUID} is not known: {cause}" for cause in ("Timeout", "GPU is lost")
    ]


@pytest.mark.parametrize("question", ["init", "handle"])
def test_a_device_that_comes_later_is_shown_then(driver: MadeUpDriver, said: Said, question: str) -> None:
    driver.fails[question] = NVMLError(9, "Driver Not Loaded")
    usage = GpuUsage(UUID)
    for _ in range(2):
        assert shown(usage) == {}
    assert said() == [("WARNING", f"usage of {UUID} is not known: Driver Not Loaded")]
    driver.fails.clear()
    assert tuple(shown(usage)) == NAMES


def test_without_the_package_it_is_said_once(monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    monkeypatch.setattr(gpu_usage, "pynvml", None)
    usage = GpuUsage(UUID)
    for _ in range(2):
        assert shown(usage) == {}
    assert said() == [("WARNING", f"usage of {UUID} is not known: the package nvidia-ml-py is not installed")]


def test_a_device_that_is_not_there_shows_nothing() -> None:
    assert list(GpuUsage("GPU-00000000-0000-0000-0000-000000000000").samples()) == []


@pytest.mark.gpu
def test_a_real_device_is_as_full_as_its_runtime_says() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    pytest.importorskip("pynvml", reason="the package nvidia-ml-py is not installed")
    usage = GpuUsage(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
    held = torch.ones(256 << 20, dtype=torch.uint8, device="cuda:0")
    end_s = time.monotonic() + 2  # NVML's moments are up to a second long
    while time.monotonic() < end_s:
        for _ in range(100):
            held.add_(1)
        torch.cuda.synchronize()
    found = {sample.name: sample.value for sample in usage.samples()}
    free, total = torch.cuda.mem_get_info(0)
    assert tuple(found) == NAMES
    assert 0 < found["device_utilization"] <= 1
    assert found["device_memory_total_bytes"] == pytest.approx(total, rel=0.05)
    assert found["device_memory_used_bytes"] == pytest.approx(total - free, abs=4 << 30)
    assert found["device_memory_used_bytes"] > held.numel()
