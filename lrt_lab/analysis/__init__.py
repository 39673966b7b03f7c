"""What finished runs show: effects, intervals, tests, verdicts. Plain numpy arrays in, points and
intervals out.

Every function takes arrays whose *last* axis is the seed (or the run) and broadcasts over all axes
before it, so that one report and a simulation of five thousand reports go through the same code.
numpy and scipy only.
"""
