"""Tasks where recurrence should matter, and controls where it should not, one file each."""

from lrt_lab.data.tasks.base import Task
from lrt_lab.data.tasks.parity import Parity
from lrt_lab.data.tasks.swaps_s5 import SwapsS5

__all__ = ["Parity", "SwapsS5", "Task"]
