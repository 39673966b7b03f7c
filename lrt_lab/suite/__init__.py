"""Suites: a declared matrix of cells and seeds, run in worker processes, resumed where it was cut.

    suite file -> declaration -> expansion -> plan -> runner and workers -> run folders -> report

Everything in this package except `worker` runs in the parent process, which never imports torch.
"""
