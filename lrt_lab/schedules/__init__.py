"""Schedules: in what order a route's recurrence is evaluated."""

from lrt_lab.schedules.base import Clock, Pass, Schedule
from lrt_lab.schedules.interleaved import Interleaved
from lrt_lab.schedules.jacobi import Jacobi
from lrt_lab.schedules.serial import Serial
from lrt_lab.schedules.single import SinglePass

__all__ = ["Clock", "Interleaved", "Jacobi", "Pass", "Schedule", "Serial", "SinglePass"]
