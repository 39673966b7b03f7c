"""Compile every kernel for cards that are absent: `make kernels-aot`.

Needs neither a GPU nor a driver: Triton brings its own assembler. Prints registers, shared memory,
spills and the share of loads that are 128 bits wide, at the shapes of the GPU scale, and exits with
1 where a kernel spills.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lrt_kernels.gpu.launch import Launch
from tests.kernels.launches import launches

BIN = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
#: Capability of the target, and its name for the assembler.
CARDS = {80: "sm_80", 90: "sm_90a"}
TYPES = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.uint8: "*u8",
}


@dataclass(frozen=True)
class Compiled:
    """What the assembler says of one kernel on one card."""

    card: str
    registers: int
    shared: int
    spilled: int
    loads: int
    wide_loads: int


def compiled(launch: Launch, capability: int) -> Compiled:
    """One kernel as its launch would compile it."""
    names = launch.kernel.arg_names
    types, constants = {}, dict(launch.constants)
    for name, value in launch.args.items():
        if value is None:
            constants[name] = None
        else:
            types[name] = TYPES[value.dtype] if isinstance(value, torch.Tensor) else "i32"
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    # As a launch finds it: pointers are aligned, and so are integers that are multiples of 16.
    unsaid = {p.name for p in launch.kernel.params if p.do_not_specialize}
    attributes = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(names)
        if name in types
        and name not in unsaid
        and (types[name][0] == "*" or launch.args[name] % 16 == 0)
    }
    kernel = triton.compile(
        ASTSource(
            fn=launch.kernel,
            signature=signature,
            constexprs={(names.index(name),): value for name, value in constants.items()},
            attrs=attributes,
        ),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": launch.warps, "num_stages": launch.stages},
    )
    with tempfile.TemporaryDirectory() as folder:
        ptx, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        ptx.write_text(kernel.asm["ptx"])
        said = run("ptxas", "-v", f"-arch={CARDS[capability]}", str(ptx), "-o", str(cubin))
        code = run("cuobjdump", "-sass", str(cubin))
    spills = re.findall(r"(\d+) bytes spill", said)
    registers = re.findall(r"Used (\d+) registers", said)
    # Those that go to shared memory by themselves, LDGSTS, included.
    loads = re.findall(r"\bLDG(?:STS)?\.\S+", code)
    return Compiled(
        CARDS[capability],
        int(registers[0]),
        kernel.metadata.shared,
        sum(map(int, spills)),
        len(loads),
        sum(".128" in load for load in loads),
    )


def run(program: str, *arguments: str) -> str:
    """Both streams of one of Triton's own programs."""
    done = subprocess.run([BIN / program, *arguments], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def main(part: str = "0/1") -> int:
    """Compile, print the table, fail on a spill; "1/4" is every fourth launch from the second."""
    first, parts = map(int, part.split("/"))
    print(f"triton {triton.__version__}; loads: 128-bit ones of all from global memory")
    print(
        f"{'kernel':40}{'card':8}{'warps':>6}{'registers':>10}{'shared':>8}{'spilled':>8}{'loads':>9}"
    )
    spilled = False
    for shape, launch in islice(launches(), first, None, parts):
        for capability in CARDS:
            found = compiled(launch, capability)
            spilled |= found.spilled > 0
            print(
                f"{f'{launch.name} {shape}':40}{found.card:8}{launch.warps:6}{found.registers:10}"
                f"{found.shared:8}{found.spilled:8}{f'{found.wide_loads}/{found.loads}':>9}",
                flush=True,
            )
    if spilled:
        print("a kernel spills registers to memory")
    return int(spilled)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
