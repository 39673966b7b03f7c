"""Schedules: in what order a route's recurrence is evaluated."""

from lrt_lab.schedules.base import Clock, Pass, Schedule
from lrt_lab.schedules.curriculum import Curriculum
from lrt_lab.schedules.cycle import Cycle
from lrt_lab.schedules.interleaved import Interleaved
from lrt_lab.schedules.jacobi import Jacobi
from lrt_lab.schedules.middle_jacobi import MiddleJacobi
from lrt_lab.schedules.pass_mix import PassMix
from lrt_lab.schedules.serial import Serial
from lrt_lab.schedules.single import SinglePass

__all__ = [
    "Clock",
    "Curriculum",
    "Cycle",
    "Interleaved",
    "Jacobi",
    "MiddleJacobi",
    "Pass",
    "PassMix",
    "Schedule",
    "Serial",
    "SinglePass",
]
