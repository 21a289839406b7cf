# Every target makes the virtual environment that it needs; a stamp file remembers that it is there,
# so a second run starts at once. Nothing but Python 3.11 or newer, make and git has to be installed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
# CHECKED are the folders that ruff and mypy look at, EXAMPLES hold notebooks, which ruff reads, too; a release archive
# may lack some of them.
CHECKED := $(wildcard src tests benchmarks)
EXAMPLES := $(wildcard examples)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-fast test-long lint check bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s  %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.stamp-spark ## open the sample store, find and explain, build on Spark, break a byte, verify, repair
	$(BIN)/whence demo

test: $(VENV)/.stamp-dev ## run all tests but the long ones
	$(PYTEST)

test-fast: $(VENV)/.stamp-dev ## run the tests that take seconds
	$(PYTEST) -q -m "not slow and not compat"

test-long: $(VENV)/.stamp-dev ## run the long tests of one part (PART=1) or of all parts
	$(BIN)/pytest -s --long $(or $(PART),all)

lint: $(VENV)/.stamp-dev ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check $(CHECKED) $(EXAMPLES)
	$(BIN)/ruff format --check $(CHECKED) $(EXAMPLES)
	$(BIN)/mypy $(CHECKED)
	$(BIN)/lint-imports

check: lint test ## all that has to pass before a change goes in: lint, then test

bench: $(VENV)/.stamp-spark ## run the benchmarks (ARGS="scan --help" goes to them)
	$(BIN)/python -m benchmarks $(ARGS)

clean: ## remove the virtual environment and what was built or cached in this folder
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find $(CHECKED) -name __pycache__ -type d -prune -exec rm -rf {} +

# Two installs: what a user of whence needs, with Spark and a Java for it where the machine has none, and beside it
# what its developers need.

$(VENV)/.stamp-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "whence needs Python 3.11 or newer, and $(PYTHON) is" \
	       "$$($(PYTHON) --version 2>&1). Name another one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.stamp-spark: pyproject.toml constraints.txt | $(VENV)/.stamp-python
	$(PIP) --editable '.[spark]'
	@$(BIN)/python -c 'import os; from whence.pipeline.java import find_java; find_java(os.environ)' 2>/dev/null \
	  || $(PIP) --editable '.[java]'
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-spark
	$(PIP) --editable '.[dev]'
	@touch $@
