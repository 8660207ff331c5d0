"""Builds what a pod offers from what it was told: the one place that knows every carrier between processes.

Those with heavy libraries are imported when they are named. Knows no pool and no peer.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

from pagewire.core.side_door import SideDoor
from pagewire.kvtransfer.carrier import Carrier
from pagewire.kvtransfer.offers import Offer, Offers, parse_names
from pagewire.kvtransfer.transports import nixl, tcp
from pagewire.kvtransfer.transports.grpc import GRPC
from pagewire.kvtransfer.transports.host_socket import host_token
from pagewire.kvtransfer.transports.nixl_agent import load_library
from pagewire.kvtransfer.transports.shm import shm_carrier

log = logging.getLogger(__name__)


def offered(
    transports: str = "auto",
    shm_dir: str = "",
    host: str = "127.0.0.1",
    device: str = "cpu",
    *,
    door: SideDoor | None = None,
) -> Offers:
    """Return the carriers of the setting `transports`, best first; `host` is where peers dial us.

    `door` is where `tcp` lets its streams in; None: it is not offered. Raises ValueError for names, and
    for carriers that do not go with a pool on `device`; ImportError or TransferFailed for a library that is not there.
    """
    offers = (_offer(name, shm_dir, host, door) for name in parse_names(transports, device))
    return Offers(tuple(offer for offer in offers if offer is not None))


def _offer(name: str, shm_dir: str, host: str, door: SideDoor | None) -> Offer | None:
    match name:
        case "tcp":
            return None if door is None else Offer(tcp.carrier(door))
        case "shm":
            return _within_host(shm_carrier(shm_dir), host_token(shm_dir))
        case "nixl":
            load_library()
            return Offer(nixl.carrier())
        case "collective":
            if host in ("0.0.0.0", "::"):  # what each end tells the other of itself
                raise ValueError(f"transport collective: host must be an address that peers dial, is {host}")
            collective = _with_torch(name)
            return Offer(collective.carrier(collective.CollectiveOptions(host=host)))
        case "cuda_ipc":
            return _within_host(_with_torch(name).carrier(shm_dir=shm_dir), host_token(shm_dir))
        case _:
            return Offer(GRPC)


def _within_host(carrier: Carrier, token: str) -> Offer | None:
    if not token:
        log.warning("%s is not offered: it cannot be told which host this is", carrier.name)
        return None
    return Offer(carrier, token)


def _with_torch(name: str) -> Any:
    return importlib.import_module(f"pagewire.kvtransfer.transports.{name}")
