"""The lab's hot operations, one module each, with a plain PyTorch reference."""

from lrt_kernels.depth_read import depth_mix, depth_read, depth_score, head_queries
from lrt_kernels.normed_scores import gelu_mix, normed_scores
from lrt_kernels.precision import no_autocast, wide
from lrt_kernels.sinkhorn import sinkhorn
from lrt_kernels.stream_mix import stream_read, stream_score, stream_write

__all__ = [
    "depth_mix",
    "depth_read",
    "depth_score",
    "gelu_mix",
    "head_queries",
    "no_autocast",
    "normed_scores",
    "sinkhorn",
    "stream_read",
    "stream_score",
    "stream_write",
    "wide",
]
