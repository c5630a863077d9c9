# Every target does its own set-up; `make help` lists them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Extra options for pip, for example the index that serves CPU builds of torch.
PIP_OPTIONS ?=
WORKERS ?= auto
PROFILE ?= dev
FUZZ_OPTIONS ?=

.PHONY: help setup fuzz test lint quality test-releases test-upstream test-te-latest bench clean
help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tefuzz needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(PIP_OPTIONS) torch==2.13.0
	$(BIN)/pip install --quiet $(PIP_OPTIONS) -e ".[dev]"
	touch $@

setup: $(VENV)/.installed  ## create the virtual environment and install the pinned set

fuzz: setup  ## fuzz under PROFILE (dev): random cases, then a summary
	$(BIN)/pytest fuzz/ -n $(WORKERS) --tefuzz-profile $(PROFILE) $(FUZZ_OPTIONS)

test: setup lint  ## the tests of the harness itself
	$(BIN)/pytest tests/ -n $(WORKERS)

lint: setup  ## ruff and the type checker
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

quality: setup  ## 20 seeds per undone fix: found and shrunk, with a table of examples and seconds (an hour)
	rm -f .tefuzz/quality.jsonl; mkdir -p .tefuzz
	TEFUZZ_QUALITY_SEEDS=20 TEFUZZ_QUALITY_RESULTS=.tefuzz/quality.jsonl $(BIN)/pytest tests/quality -n $(WORKERS)
	$(BIN)/python tests/quality/table.py .tefuzz/quality.jsonl

test-releases: setup  ## prove the detectors on the old Thunder release that has a bug, in an environment of its own
	$(BIN)/python tests/releases/run_releases.py --pip-options "$(PIP_OPTIONS)"

bench: setup  ## the benchmarks: cases per second and shares of time, speed of the emulation
	$(BIN)/python benchmarks/cases.py
	$(BIN)/python benchmarks/emulation.py

clean:  ## remove the virtual environment and all caches
	rm -rf $(VENV) .hypothesis .pytest_cache .ruff_cache .mypy_cache .tefuzz
