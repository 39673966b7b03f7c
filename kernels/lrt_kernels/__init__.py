"""The lab's hot operations, one module each, with a plain PyTorch reference."""

from lrt_kernels.backend import KERNELS, OPS, backend, backends
from lrt_kernels.delta_rule import (
    delta_rule,
    delta_rule_chunkwise,
    delta_rule_recurrent,
    delta_rule_step,
)
from lrt_kernels.dense_aggregate import dense_aggregate
from lrt_kernels.depth_bank import Scored, read_scored, score_source
from lrt_kernels.depth_read import depth_mix, depth_read, depth_score, head_queries
from lrt_kernels.gated_product import gated_product
from lrt_kernels.inject_kv import Placement, inject_kv, place_heads, rotate
from lrt_kernels.linear_cross_entropy import linear_cross_entropy
from lrt_kernels.merge_cache import merge_cache, update_cache
from lrt_kernels.normed_scores import gelu_mix, normed_scores
from lrt_kernels.precision import alike, no_autocast, wide
from lrt_kernels.short_conv import l2_norm, short_conv
from lrt_kernels.simplicial_attention import simplicial_attention
from lrt_kernels.sinkhorn import sinkhorn
from lrt_kernels.slot_compact import direction, slot_compact, slot_gate, slot_reflect
from lrt_kernels.stream_coefficients import Sinkhorn, stream_adjustments, stream_coefficients
from lrt_kernels.stream_mix import stream_read, stream_score, stream_write

__all__ = [
    "KERNELS",
    "OPS",
    "Placement",
    "Scored",
    "Sinkhorn",
    "alike",
    "backend",
    "backends",
    "delta_rule",
    "delta_rule_chunkwise",
    "delta_rule_recurrent",
    "delta_rule_step",
    "dense_aggregate",
    "depth_mix",
    "depth_read",
    "depth_score",
    "direction",
    "gated_product",
    "gelu_mix",
    "head_queries",
    "inject_kv",
    "l2_norm",
    "linear_cross_entropy",
    "merge_cache",
    "no_autocast",
    "normed_scores",
    "place_heads",
    "read_scored",
    "rotate",
    "score_source",
    "short_conv",
    "simplicial_attention",
    "sinkhorn",
    "slot_compact",
    "slot_gate",
    "slot_reflect",
    "stream_adjustments",
    "stream_coefficients",
    "stream_read",
    "stream_score",
    "stream_write",
    "update_cache",
    "wide",
]
