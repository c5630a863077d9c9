# Every target does its own set-up; `make help` lists them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Extra options for pip, for example the index that serves CPU builds of torch.
PIP_OPTIONS ?=
WORKERS ?= auto
PROFILE ?= dev
FUZZ_OPTIONS ?=

.PHONY: help setup fuzz test lint quality mutants determinism test-fleet test-releases test-upstream test-te-latest test-te-latest-short false-alarms bench clean
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

mutants: setup  ## small regressions of Thunder and TE: is each found? goes on where it was interrupted (an hour)
	$(BIN)/tefuzz mutants

test-releases: setup  ## prove the detectors on the old Thunder release that has a bug, in an environment of its own
	$(BIN)/python tests/releases/run_releases.py --pip-options "$(PIP_OPTIONS)"

test-fleet: setup  ## several machines: also a campaign on a local Ray, one of whose workers is killed (some minutes)
	$(BIN)/pip install --quiet $(PIP_OPTIONS) -e ".[dev,fleet]"
	TEFUZZ_TEST_RAY=1 $(BIN)/pytest tests/fleet

determinism: setup  ## 200 cases three times: in order, shuffled, in two processes: equal to the last bit? (ten minutes)
	TEFUZZ_DETERMINISM_CASES=200 $(BIN)/pytest tests/isolation/test_determinism.py

CASES ?= 5000
false-alarms: setup  ## CASES (5000) cases on the installed releases: what no known issue explains; goes on where it was
	$(BIN)/python benchmarks/false_alarms.py --cases $(CASES)

bench: setup  ## the benchmarks: shares of time, overhead, start, scaling, growth, speed of the emulation
	$(BIN)/python benchmarks/cases.py
	$(BIN)/python benchmarks/costs.py
	$(BIN)/python benchmarks/emulation.py

test-upstream: setup  ## run the test files of TE (DIR=a checkout at the installed version) or Thunder (DIR=thunder)
	$(BIN)/python tests/upstream/run_upstream.py $(DIR)

LATEST := .venv-te-latest
LATEST_TE := 2.20.2
# Thunder's executor v1 does not import with this TE.
LATEST_FUZZ := -k "te_v2 or torch or fuser"

$(LATEST)/.installed: pyproject.toml
	test -x $(LATEST)/bin/python || $(PYTHON) -m venv $(LATEST)
	$(LATEST)/bin/pip install --quiet $(PIP_OPTIONS) torch==2.13.0
	$(LATEST)/bin/pip install --quiet $(PIP_OPTIONS) -e .
	$(LATEST)/bin/pip install --quiet $(PIP_OPTIONS) --no-deps transformer-engine==$(LATEST_TE)
	touch $@

test-te-latest: $(LATEST)/.installed  ## the suites under the newest TE that is supported, in an environment of its own
	$(LATEST)/bin/pytest tests/emulation tests/fixes -n $(WORKERS)
	$(LATEST)/bin/pytest fuzz/ -n $(WORKERS) --tefuzz-profile $(PROFILE) $(LATEST_FUZZ)

test-te-latest-short: $(LATEST)/.installed  ## a short form of test-te-latest, for CI
	$(LATEST)/bin/pytest tests/emulation/test_modules.py tests/emulation/test_signatures.py -n $(WORKERS)
	$(LATEST)/bin/pytest fuzz/ -n $(WORKERS) --tefuzz-profile ci-short $(LATEST_FUZZ)

clean:  ## remove the virtual environment and all caches
	rm -rf $(VENV) $(LATEST) .hypothesis .pytest_cache .ruff_cache .mypy_cache .tefuzz
