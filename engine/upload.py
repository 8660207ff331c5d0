"""Numbers of the host on their way to a device, which nobody waits for."""

from __future__ import annotations

import torch


def upload(here: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a host tensor of any shape as one on a device; on a CPU it is the same one.

    What is copied is a pinned copy, so that `here` may be written at once; torch gives its memory to nobody else before
    the device has read it.
    """
    if device.type == "cpu":
        return here
    return here.pin_memory().to(device, non_blocking=True)
