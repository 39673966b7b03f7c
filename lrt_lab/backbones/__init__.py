"""Residual backbones: how state travels up through depth."""

from lrt_lab.backbones.attention_residuals import AttentionResiduals
from lrt_lab.backbones.base import Backbone
from lrt_lab.backbones.prenorm import PreNorm

__all__ = ["AttentionResiduals", "Backbone", "PreNorm"]
