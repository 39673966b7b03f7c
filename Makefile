# lrt-lab. `make` prints this help.

# Suites beside h1 have scales of their own: smoke, and cpu unless told otherwise.
OTHER_SCALE := $(or $(strip $(SCALE)),cpu)
SCALE ?= quick   ## how large h1 runs: smoke, quick, cpu, gpu or paper; h2, h3 the first four; others: smoke or cpu
JOBS ?= 2        ## worker processes

# Without the blanks that stand before the comments above.
override SCALE := $(strip $(SCALE))
override JOBS := $(strip $(JOBS))

SUITE = experiments/h1.yaml
# The panel where recurrence must matter belongs to the full protocol.
PANEL := $(if $(filter cpu gpu,$(SCALE)),experiments/h1-swaps.yaml)
H2_PANEL := $(if $(filter cpu gpu,$(SCALE)),experiments/h2-swaps.yaml)
# Set-up runs again when the pinned versions, the dependencies or the set-up itself change.
STAMP := .venv/.stamp-$(shell cat .ci/lock-cpu.txt .ci/text.txt .ci/setup pyproject.toml | git hash-object --stdin)

.PHONY: help setup h1 h1-tune h1-extended h2 h2-tune h3 backbones contraction tasks mixers bench-backbones bench-passes bench-mixers bench-describe kernels-bench kernels-aot kernels-gpu test check clean
.DEFAULT_GOAL := help

help: ## print this help
	@echo "make TARGET [SCALE=quick] [JOBS=2] [PYTHON=python3.11]"
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## /  \1\t/p; s/^\([A-Z]*\) ?= \([^ ]*\) *## /  \1\t(\2) /p' Makefile | expand -t 18

setup: $(STAMP) ## fill .venv; does nothing when it is up to date

$(STAMP):
	@PYTHON="$(PYTHON)" sh .ci/setup
	@rm -f .venv/.stamp-*
	@touch $@

h1: setup ## train Hypothesis 1's cells and write reports/h1/SCALE/report.md; resumes what was cut
	@for suite in $(SUITE) $(PANEL); do \
	  .venv/bin/lrt-lab suite run $$suite --scale $(SCALE) --jobs $(JOBS) || exit $$?; done

h1-tune: setup ## choose every cell's learning rate anew: experiments/tuning/h1.json, to be committed
	@for suite in $(SUITE) $(PANEL); do \
	  .venv/bin/lrt-lab suite tune $$suite --scale $(SCALE) --jobs $(JOBS) || exit $$?; done

h1-extended: setup ## every route on four backbones, grouped by retain, read, change and train; SCALE=smoke or cpu
	@.venv/bin/lrt-lab suite run experiments/h1-extended.yaml --scale $(OTHER_SCALE) --jobs $(JOBS)

h2: setup ## train Hypothesis 2's arms and write reports/h2/SCALE/report.md; resumes what was cut
	@for suite in experiments/h2.yaml $(H2_PANEL); do \
	  .venv/bin/lrt-lab suite run $$suite --scale $(SCALE) --jobs $(JOBS) || exit $$?; done

h2-tune: setup ## choose every arm's learning rate anew: experiments/tuning/h2.json, to be committed
	@.venv/bin/lrt-lab suite tune experiments/h2.yaml --scale $(SCALE) --jobs $(JOBS)

h3: setup ## scaling laws of latent propagation and its baselines, and where they cross: reports/h3/SCALE
	@.venv/bin/lrt-lab suite run experiments/h3.yaml --scale $(SCALE) --jobs $(JOBS)

backbones: setup ## compare all residual backbones at three learning rates each; SCALE=smoke or cpu
	@.venv/bin/lrt-lab suite run experiments/backbones.yaml --scale $(OTHER_SCALE) --jobs $(JOBS)

contraction: setup ## feed Full-bandwidth back beyond its trained depth, with and without triples; SCALE=smoke or cpu
	@.venv/bin/lrt-lab suite run experiments/contraction.yaml --scale $(OTHER_SCALE) --jobs $(JOBS)

tasks: setup ## swaps-S5 and parity: plain stacks and the routes, by accuracy; SCALE=smoke or cpu
	@.venv/bin/lrt-lab suite run experiments/tasks.yaml --scale $(OTHER_SCALE) --jobs $(JOBS)

bench-passes: setup ## time of a step of K Jacobi passes over K plain steps, against the committed numbers
	@.venv/bin/python -m tests.benchmarks.passes

mixers: setup ## token mixers with and without LRT on text and swaps-S5, and their recall; SCALE=smoke or cpu
	@for suite in mixers mixers-s5 mixers-mqar; do \
		.venv/bin/lrt-lab suite run experiments/$$suite.yaml --scale $(OTHER_SCALE) --jobs $(JOBS) || exit $$?; \
	done

bench-backbones: setup ## time and memory of all backbones beside PreNorm, against the committed numbers
	@.venv/bin/python -m tests.benchmarks.backbones

bench-mixers: setup ## time, decoding and memory of all mixers beside attention, against the committed numbers
	@.venv/bin/python -m tests.benchmarks.mixers

bench-describe: setup ## time of describe on every shipped config, against the aim of four seconds
	@.venv/bin/python -m tests.benchmarks.describe

kernels-bench: setup ## time of the operations beside their naive forms; on a GPU beside a copy
	@.venv/bin/python -m tests.benchmarks.kernels

kernels-aot: setup ## compile every kernel for absent cards: registers, shared memory, spills
	@.venv/bin/python -m tests.kernels.aot

kernels-gpu: setup ## the kernels' tests that need a GPU
	@.venv/bin/python -m pytest -m gpu tests/kernels

test: setup ## run the tests
	@.venv/bin/python -m pytest -n $(JOBS)

check: setup ## lint, format and types, changing nothing
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy

clean: ## remove .venv, prepared text and caches; runs and reports stay
	rm -rf .venv data dist .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
