"""Callbacks, one file each."""

from lrt_lab.training.callbacks.contraction import Contraction
from lrt_lab.training.callbacks.depth import Depth
from lrt_lab.training.callbacks.heartbeat import Heartbeat
from lrt_lab.training.callbacks.record import Record
from lrt_lab.training.callbacks.throughput import Throughput

__all__ = ["Contraction", "Depth", "Heartbeat", "Record", "Throughput"]
