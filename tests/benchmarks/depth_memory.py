"""Bytes kept for the backward pass of one training step, by depth.

Run it from the repository's root: ``python -m tests.benchmarks.depth_memory``.
"""

from __future__ import annotations

import torch

from lrt_lab.backbones import AttentionResiduals, PreNorm
from lrt_lab.decoder import Decoder
from lrt_lab.routes import LRT, NoRoute
from lrt_lab.schedules import Interleaved, SinglePass
from tests.support.saved import saved_bytes

WIDTH, ROWS, LENGTH, VOCAB = 64, 4, 64, 257
DEPTHS = (4, 8, 16, 32)
TREATMENTS = ((NoRoute, SinglePass()), (LRT, Interleaved(2)))


def main() -> None:
    """Print MiB per depth and the ratio of each depth to half of it."""
    print(f"width {WIDTH}, {ROWS} x {LENGTH} positions; MiB at {DEPTHS} blocks, then the ratios")
    tokens = torch.zeros(ROWS, LENGTH + 1, dtype=torch.long)
    for backbone in (PreNorm, AttentionResiduals):
        for route, schedule in TREATMENTS:
            sizes = [
                saved_bytes(Decoder(WIDTH, blocks, VOCAB, backbone(), route()), schedule, tokens)
                for blocks in DEPTHS
            ]
            mib = " ".join(f"{size / 2**20:8.2f}" for size in sizes)
            ratios = " ".join(
                f"{two / one:6.3f}" for one, two in zip(sizes, sizes[1:], strict=False)
            )
            print(f"{backbone.__name__:20} {route.__name__:8} {mib}   {ratios}")


if __name__ == "__main__":
    main()
