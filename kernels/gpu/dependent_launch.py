"""Programmatic dependent launch: a kernel starts while the one before it ends, and waits for that itself.

Launched with `launch_pdl` its programs may start as soon as every program of the kernel before has called
`gdc_launch_dependents` or ended. `gdc_wait` then blocks until that kernel is complete and all that it wrote is visible.
So what lies between two kernels of a stream is not the start of a grid but one wait, and what depends on no earlier
kernel, such as weights, may be read ahead of it.

Invariant: in every program of a kernel that is launched so, also in one that has nothing to do, `gdc_wait` comes before
anything is read that a kernel wrote and before anything is written at all. Then a kernel ends only after the one before
it, so the wait for one is the wait for all; memory that is allocated anew may be that of any of them.

A kernel lets the next one start once its own wait is over: whoever starts then knows that all but the kernel before it
is complete. Only products of few rows do so earlier, for the sake of what the next one reads ahead (`small_linear.py`),
and attention not at all where a kernel merges its parts: what waits keeps room that its programs need (on an H200 the
merge's did, 168 us for 134). Where it merges them itself, it does once its last item is read.

Off where a processor does not overlap kernels: the interpreter has no such instructions.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait_for_earlier(OVERLAPS: tl.constexpr):
    """Wait until all earlier kernels are complete, then let the next one start."""
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
