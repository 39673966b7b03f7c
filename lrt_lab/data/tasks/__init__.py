"""Tasks where recurrence should matter, and controls where it should not, one file each."""

from lrt_lab.data.tasks.base import Task
from lrt_lab.data.tasks.modular_addition import ModularAddition
from lrt_lab.data.tasks.mqar import MQAR
from lrt_lab.data.tasks.parity import Parity
from lrt_lab.data.tasks.reachability import Reachability
from lrt_lab.data.tasks.swaps_s5 import SwapsS5
from lrt_lab.data.tasks.variable_assignment import VariableAssignment

__all__ = [
    "MQAR",
    "ModularAddition",
    "Parity",
    "Reachability",
    "SwapsS5",
    "Task",
    "VariableAssignment",
]
