# The commands of the project. `make` lists them.
SHELL := bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.fedge-setup
# Two cores are a quarter idle with two: tests wait for the processes that they start.
JOBS ?= 3
# Folder of recorded measurements, if available; tests and calibrations that need them are skipped otherwise.
FEDGE_PROFILES ?= $(if $(wildcard ../shared/profiles/.),$(abspath ../shared/profiles))
export FEDGE_PROFILES
# Many small models: one thread each is faster than all threads for one, and gives the same bits everywhere.
export OMP_NUM_THREADS ?= 1
# Without its bytecode torch takes twice as long to import, in every process that a test or a run starts.
unexport PYTHONDONTWRITEBYTECODE
# Nothing here needs to report home.
export FLWR_TELEMETRY_ENABLED ?= 0
export FLWR_DISABLE_UPDATE_CHECK ?= 1

PYTEST := $(BIN)/python -m pytest
# Tests that start Ansible or whole test hosts take many minutes, and the hosts need root, so they have their own command.
RUN_TESTS := $(PYTEST) -n $(JOBS) --dist loadgroup

.PHONY: help setup wheel quickstart test test-fast test-long test-monitor test-wheel test-vendor test-fleet test-faults fuzz mutants coverage check lint types layers format docs bench clean

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## Make .venv and install the project into it (only when something changed)

# PYTHON=/path/to/python chooses the interpreter.
$(STAMP): requirements.lock torch.lock requirements.in pyproject.toml setup.py
	@python=$$(PYTHON='$(PYTHON)' .ci/find-python) || exit 1; \
	  if [ ! -x $(BIN)/python ]; then echo "Making $(VENV) with $$($$python -V) ..."; $$python -m venv $(VENV) || exit 1; fi
	@echo "Installing the pinned dependencies (about a minute with a warm network) ..."
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile -r torch.lock
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q fedge clients server experiments
	@$(BIN)/python -c "import flwr.clientapp, flwr.serverapp, flwr.simulation, pandas, ray, torch"
	@touch $@
	@echo "Ready: $(BIN)/fedge --help"

wheel: setup ## Build the wheel and the source archive into dist/
	@rm -rf build dist/fedge-*
	@$(BIN)/python -c "import setuptools.build_meta as b; b.build_sdist('dist')" >/dev/null 2>&1
	@$(BIN)/python -m pip wheel -q --no-deps --no-build-isolation -w dist dist/fedge-*.tar.gz
	@ls dist/fedge-*

quickstart: setup ## Emulate a small fleet for a few rounds and write the report
	@$(BIN)/fedge run experiments/configs/quickstart.yaml

test: setup ## All tests that this machine can run, except test-long, test-monitor and test-fleet
	@$(RUN_TESTS) -m "not long and not fleet and not monitor"

test-long: setup ## Evaluations on whole measured tables and long forms of other tests (minutes)
	@$(RUN_TESTS) -m "long and not fleet and not monitor"

test-fast: setup ## The tests that need no other process and no long computation
	@$(RUN_TESTS) -m "not slow and not long and not fleet and not monitor"

test-monitor: setup ## The pages in Chromium, a real Prometheus, Ray's dashboard (skips what is not installed)
	@$(PYTEST) -rs -p no:cacheprovider -m monitor $(or $(MONITOR_TESTS),tests)

test-wheel: setup ## The wheel with each extra in an empty environment (minutes, the network)
	@.ci/test-wheel

test-vendor: setup ## The boards' programs under the Python versions of JetPack
	@.ci/test-vendor

test-fleet: setup ## Playbooks on a fleet of test hosts (root; installs systemd-nspawn; forty minutes)
	@$(PYTEST) -s -rs -p no:cacheprovider -m fleet $(or $(FLEET_TESTS),tests)

# make test-faults FAULTS="--points 100 local store"
test-faults: setup ## Kills and other faults at random instants; prints tried and held per process (FAULTS="--points N [PROCESS ...]")
	@$(BIN)/python tests/faults/run_faults.py $(FAULTS)

# make fuzz FUZZ="--inputs 20000 store-wal", or FUZZ="--hours 8 --keep found".
fuzz: setup ## Hostile inputs to every parser; prints tried and failed per target (FUZZ="--inputs N | --hours H [TARGET ...]")
	@$(BIN)/python tests/fuzz/run_targets.py $(FUZZ)

# make mutants MUTANTS="--mutants 60 fedge/powerd"
mutants: setup ## Small changes to the sources that no test notices; prints noticed per package (MUTANTS="--mutants N [PACKAGE ...]")
	@$(BIN)/python tests/mutants/run_mutants.py $(MUTANTS)

# Under the tracer tests take half as long again, or twice as long, and those with a time limit may miss it: so failed tests
# (pytest's 1) are left to `make test`, and only the figures count here.
coverage: setup ## Lines and branches that the fast tests reach, by package
	@rm -rf .coverage
	@$(BIN)/python -m coverage run -m pytest -q -n $(JOBS) --dist loadgroup -p no:cacheprovider \
	  -m "not slow and not long and not fleet and not monitor" $(COVERAGE_TESTS) || [ $$? -eq 1 ]
	@$(BIN)/python .ci/coverage-table

check: lint types layers docs ## Lint (with bandit's rules), format, types, layers, secrets, links of the manual

lint: setup
	@$(BIN)/ruff check --quiet --output-format concise .
	@$(BIN)/ruff format --check --quiet --output-format concise .
	@echo "ruff: clean"

types: setup
	@$(BIN)/mypy

layers: setup
	@$(PYTEST) -q tests/test_layers.py tests/test_readability.py tests/test_packaging.py tests/test_secrets.py

format: setup ## Format the code and apply automatic fixes
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: setup ## Build the manual as a site into site/, with the generated reference; a dead link is an error
	@NO_MKDOCS_2_WARNING=1 PYTHONWARNINGS=ignore $(BIN)/mkdocs build
	@echo "site/index.html; with search: $(BIN)/python -m http.server -d site"

bench: setup ## Run the benchmarks one after the other, each with its command, the machine and the date; name failures
	@failed=; machine="$$(nproc) cores, $$(uname -sm), $$($(BIN)/python -V), commit $$(git rev-parse --short HEAD)"; \
	  for program in benchmarks/*.py; do \
	    echo "== $(BIN)/python $$program ($$machine, $$(date -Iminutes))"; \
	    $(BIN)/python "$$program" || failed="$$failed $$program"; done; \
	  if [ -n "$$failed" ]; then echo "failed:$$failed"; exit 1; fi

clean: ## Remove environments, caches and build output; runs are kept
	@rm -rf $(VENV) .venv-vendor build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
