"""Latent routes: what leaves position t-1, and where it enters position t."""

from lrt_lab.routes.base import NoRoute, Route, Traits
from lrt_lab.routes.lrt import LRT

__all__ = ["LRT", "NoRoute", "Route", "Traits"]
