"""Mixers: how one layer mixes positions."""

from lrt_lab.mixers.attention import Attention
from lrt_lab.mixers.base import Mixer
from lrt_lab.mixers.deltanet import DeltaNet
from lrt_lab.mixers.gated_deltanet import GatedDeltaNet
from lrt_lab.mixers.simplicial import SimplicialAttention

__all__ = ["Attention", "DeltaNet", "GatedDeltaNet", "Mixer", "SimplicialAttention"]
