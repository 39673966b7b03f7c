"""Residual backbones: how state travels up through depth."""

from lrt_lab.backbones.attention_residuals import AttentionResiduals
from lrt_lab.backbones.base import Backbone
from lrt_lab.backbones.hyper_connections import HyperConnections
from lrt_lab.backbones.mhc import MHC
from lrt_lab.backbones.mhc_lite import MHCLite
from lrt_lab.backbones.muddformer import MUDDFormer
from lrt_lab.backbones.pairwise_attention_residuals import PairwiseAttentionResiduals
from lrt_lab.backbones.prenorm import PreNorm

__all__ = [
    "MHC",
    "AttentionResiduals",
    "Backbone",
    "HyperConnections",
    "MHCLite",
    "MUDDFormer",
    "PairwiseAttentionResiduals",
    "PreNorm",
]
