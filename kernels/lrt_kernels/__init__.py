"""The lab's hot operations, one module each, with a plain PyTorch reference."""

from lrt_kernels.depth_read import depth_mix, depth_read, depth_score, head_queries
from lrt_kernels.precision import no_autocast, wide
from lrt_kernels.sinkhorn import sinkhorn
from lrt_kernels.stream_mix import stream_read, stream_score, stream_write
from lrt_kernels.stream_scores import stream_scores

__all__ = [
    "depth_mix",
    "depth_read",
    "depth_score",
    "head_queries",
    "no_autocast",
    "sinkhorn",
    "stream_read",
    "stream_score",
    "stream_scores",
    "stream_write",
    "wide",
]
