"""Mixers: how one layer mixes positions."""

from lrt_lab.mixers.attention import Attention
from lrt_lab.mixers.base import Mixer

__all__ = ["Attention", "Mixer"]
