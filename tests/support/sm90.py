"""Kernels compiled for compute capability 9.0 (H100, H200) where no such GPU is: every launch becomes its machine code.

Within `compiled()` host code runs as ever, on CPU tensors; what it launches is specialised and compiled by Triton as a
device would have it and then not run, so outputs hold nothing. Thus a kernel is inspected exactly as it is shipped:
no signature, constant or alignment is written down a second time. Triton brings the assembler and disassembler.
Does not work under TRITON_INTERPRET, which replaces kernels when they are imported.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.jit import JITFunction

SHARED_BYTES = 227 << 10  # of one block, at most
REGISTERS = 65536  # of one multiprocessor
_BIN = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*)")
_LOCAL = r"LDL|STL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One launch, compiled; counts are of instructions in the code, not of those that run."""

    name: str
    constants: dict[str, Any]  # constexpr parameters
    grid: tuple[int, ...]
    num_warps: int
    registers: int  # of a thread
    stack: int  # bytes of a thread: what is spilled, and arrays
    shared: int  # bytes of a block
    inner_spills: int  # of `spills`, those in loops that hold no other loop
    sequence: tuple[str, ...] = field(repr=False)  # opcodes as the code has them: "LDGSTS.E.BYPASS.128" and the like
    ptx: str = field(repr=False)

    @property
    def opcodes(self) -> Counter[str]:
        """How many instructions there are of each."""
        return Counter(self.sequence)

    def count(self, pattern: str) -> int:
        """Return how many instructions have opcodes that begin as the regular expression `pattern` says."""
        return sum(number for opcode, number in self.opcodes.items() if re.match(pattern, opcode))

    @property
    def spills(self) -> int:
        """Loads and stores of local memory."""
        return self.count(_LOCAL)

    @property
    def hgmma(self) -> int:
        """Matrix products of a warp group (wgmma)."""
        return self.count(r"HGMMA|QGMMA")

    @property
    def hmma(self) -> int:
        """Matrix products of one warp."""
        return self.count(r"HMMA")

    @property
    def wide_loads(self) -> int:
        """Loads of 16 bytes a thread from global memory, to registers or to shared memory, and of tiles (TMA)."""
        return self.count(r"(LDG|LDGSTS)\..*\b128\b|UTMALDG")

    @property
    def narrow_copies(self) -> int:
        """Copies of less than 16 bytes a thread from global to shared memory."""
        return self.count(r"LDGSTS\.") - self.count(r"LDGSTS\..*\b128\b")

    @property
    def blocks_per_sm(self) -> int:
        """Blocks that one multiprocessor holds at once, by registers (allotted to a warp by 256) and shared memory."""
        per_warp = -(-self.registers * 32 // 256) * 256
        # Each block takes 1 KiB of shared memory besides its own; a multiprocessor has 228.
        return min(REGISTERS // (per_warp * self.num_warps), (228 << 10) // (self.shared + 1024), 64 // self.num_warps)


@contextmanager
def compiled() -> Iterator[list[Kernel]]:
    """Yield a list that every launch within is added to as a `Kernel`, compiled and not run."""
    kernels: list[Kernel] = []
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        binary = run(self, *args, grid=grid, warmup=True, **kwargs)
        names = [self.arg_names[place] for (place,) in binary.src.constants]
        constants = dict(zip(names, binary.src.constants.values(), strict=True))
        kernels.append(_inspect(self.fn.__name__, constants, tuple(grid), binary))

    with (
        mock.patch.object(triton.runtime.driver, "_active", _Absent()),
        mock.patch.object(JITFunction, "run", compile_only),
    ):
        yield kernels


class _Absent(DriverBase):  # type: ignore[misc]
    """The driver of a GPU that is not there: it can be compiled for."""

    @classmethod
    def is_active(cls) -> bool:
        return False

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> str:
        return "absent"  # a key of Triton's caches, which no real device has

    def get_current_stream(self, device: str) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        raise NotImplementedError("there is no device")

    def get_benchmarker(self) -> Any:
        raise NotImplementedError("there is no device")

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError("nothing is launched")


def _inspect(name: str, constants: dict[str, Any], grid: tuple[int, ...], binary: Any) -> Kernel:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        usage = _cuobjdump("--dump-resource-usage", file.name)
        sass = _cuobjdump("--dump-sass", file.name)
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found is not None, usage
    lines = [line for line in map(_INSTRUCTION.match, sass.splitlines()) if line]
    sequence = tuple(line[2] for line in lines)
    assert "EXIT" in sequence, "the disassembly is not read as it is written"
    return Kernel(
        name=name, constants=constants, grid=grid, num_warps=binary.metadata.num_warps, registers=int(found[1]),
        stack=int(found[2]), shared=binary.metadata.shared, inner_spills=_inner_spills(lines), sequence=sequence,
        ptx=binary.asm["ptx"],
    )  # fmt: skip


def _inner_spills(lines: list[re.Match[str]]) -> int:
    """Return how many loads and stores of local memory are in innermost loops: between a branch back and its target."""
    branches = [(int(line[1], 16), re.search(r"0x([0-9a-f]+)", line[3])) for line in lines if line[2].startswith("BRA")]
    loops = [(int(target[1], 16), at) for at, target in branches if target and int(target[1], 16) < at]
    inner = [
        (first, last)
        for first, last in loops
        if not any((first, last) != other and first <= other[0] and other[1] <= last for other in loops)
    ]
    spills = [int(line[1], 16) for line in lines if re.match(_LOCAL, line[2])]
    return sum(any(first <= at <= last for first, last in inner) for at in spills)


def _cuobjdump(option: str, path: str) -> str:
    return subprocess.run([_BIN / "cuobjdump", option, path], check=True, capture_output=True, text=True).stdout
