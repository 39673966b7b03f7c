"""Norm, rotary embedding, feed-forward bodies, parameters and the shape of a decoder."""

from lrt_kernels import rotate
from lrt_lab.layers.ffn import FeedForward, SquaredReLU, SwiGLU
from lrt_lab.layers.norm import RMSNorm, rms_norm
from lrt_lab.layers.parameter import (
    ROLES,
    Role,
    Routing,
    constant,
    fan_in,
    initialize,
    normal,
    parameter,
    uniform,
)
from lrt_lab.layers.rotary import rotary_table
from lrt_lab.layers.shape import Shape

__all__ = [
    "ROLES",
    "FeedForward",
    "RMSNorm",
    "Role",
    "Routing",
    "Shape",
    "SquaredReLU",
    "SwiGLU",
    "constant",
    "fan_in",
    "initialize",
    "normal",
    "parameter",
    "rms_norm",
    "rotary_table",
    "rotate",
    "uniform",
]
