"""Latent routes: what leaves position t-1, and where it enters position t."""

from lrt_lab.routes.base import NoRoute, Route, Traits
from lrt_lab.routes.coconut import Coconut
from lrt_lab.routes.full_bandwidth import FullBandwidth
from lrt_lab.routes.gather_ffn import GatherFFN
from lrt_lab.routes.householder import Householder
from lrt_lab.routes.lrt import LRT
from lrt_lab.routes.t2mlr import T2MLR

__all__ = [
    "LRT",
    "T2MLR",
    "Coconut",
    "FullBandwidth",
    "GatherFFN",
    "Householder",
    "NoRoute",
    "Route",
    "Traits",
]
