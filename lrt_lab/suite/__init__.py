"""Suites: a declared matrix of cells and seeds, run in worker processes and resumed wherever it was
cut.

    experiments/h1.yaml -> declaration -> expansion -> plan -> runner + workers -> run folders ->
    report

Everything in this package except `worker` runs in the parent process, which never imports torch.
"""
