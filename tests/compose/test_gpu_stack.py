"""What compose.gpu.yaml asks of an engine for pods on GPUs, as it is read: devices, shared memory, NCCL and UCX.

That a container with a GPU is given all of it, and that it suffices there, is proved nowhere.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from source_tree import ROOT

COMPOSE = ROOT / "compose"
PODS = {"prefill": "${PREFILL_GPUS:-0}", "decode": "${DECODE_GPUS:-0}"}
# For pods whose blocks go between processes: pinned memory, rings in /dev/shm, libraries that find the network.
ENVIRONMENT = {
    "PAGEWIRE_DEVICE": "cuda",
    "PAGEWIRE_KV_MEMORY": "${GPU_KV_MEMORY:-16GiB}",
    "PAGEWIRE_TRANSPORTS": "${GPU_TRANSPORTS:-cuda_ipc,nixl,grpc}",
    "NCCL_DEBUG": "${NCCL_DEBUG:-WARN}",
    "NCCL_SOCKET_IFNAME": "${NCCL_SOCKET_IFNAME:-eth0}",
    "NCCL_CUMEM_HOST_ENABLE": "0",
    "UCX_TLS": "${UCX_TLS:-all}",
    "UCX_NET_DEVICES": "${UCX_NET_DEVICES:-all}",
}


def services(name: str) -> dict[str, Any]:
    told: dict[str, Any] = yaml.safe_load((COMPOSE / name).read_text(encoding="utf-8"))["services"]
    return told


@pytest.fixture(scope="module")
def gpu() -> dict[str, Any]:
    return services("compose.gpu.yaml")


def test_pods_and_what_fetches_their_model_are_of_the_image_for_gpus(gpu: dict[str, Any]) -> None:
    assert set(gpu) == {"model", *PODS}
    for service in gpu.values():
        assert service["image"].startswith("pagewire-pod-cuda:")
        assert service["build"]["target"] == "pod-cuda"
    assert "deploy" not in gpu["model"], "it computes nothing"


@pytest.mark.parametrize("name", PODS)
def test_a_pod_reserves_the_gpus_that_its_line_names(gpu: dict[str, Any], name: str) -> None:
    (device,) = gpu[name]["deploy"]["resources"]["reservations"]["devices"]
    # A count beside the ids, or a capability less, and Compose refuses it, or gives none.
    assert device == {"driver": "nvidia", "device_ids": [PODS[name]], "capabilities": ["gpu"]}


@pytest.mark.parametrize("name", PODS)
def test_a_pod_has_room_for_rings_and_may_pin_all_it_wants(gpu: dict[str, Any], name: str) -> None:
    assert gpu[name]["shm_size"] == "${SHM_SIZE:-4gb}"
    assert (gpu[name]["ipc"], gpu[name]["pid"]) == ("${IPC:-private}", "${PID_NAMESPACE:-}")
    assert gpu[name]["ulimits"] == {"memlock": -1}


@pytest.mark.parametrize("name", PODS)
def test_a_pod_is_told_its_device_and_what_nccl_and_ucx_may_use(gpu: dict[str, Any], name: str) -> None:
    assert gpu[name]["environment"] == ENVIRONMENT


@pytest.mark.parametrize("name", PODS)
def test_nothing_else_of_a_pod_is_replaced(gpu: dict[str, Any], name: str) -> None:
    """What hardens it, connects it and keeps it running is compose.yaml's alone."""
    changed = set(gpu[name]) & set(services("compose.yaml")[name])
    assert changed <= {"image", "build", "environment", "deploy"}
