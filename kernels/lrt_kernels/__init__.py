"""The lab's hot operations, one module each, with a plain PyTorch reference."""

from lrt_kernels.depth_read import depth_mix, depth_read, depth_score

__all__ = ["depth_mix", "depth_read", "depth_score"]
