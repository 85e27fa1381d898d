# Needs only python3 (3.11 or newer, with venv) and make. Everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test long check bench sim mutants lock clean

help: ## say what there is
	@grep -E '^[a-z]+:.*## ' Makefile | sed 's/:.*## /\t/' | expand -t 12

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Crewlet needs Python 3.11 or newer; set PYTHON=/path/to/it."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	sed -n '/^uv==/,/^[^ ]/{/^uv==/p;/^ /p}' requirements.lock > $(VENV)/uv.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(VENV)/uv.lock
	$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes --compile-bytecode requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

setup: $(STAMP) ## make .venv with the locked dependencies and the project

demo: setup ## a three-node company survives a killed node, a frozen one and a broker restart
	$(BIN)/crewlet demo --docs .

test: setup ## everything that CI runs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/pyright
	$(BIN)/python -m pytest -q -n 4 --dist worksteal -m "not alone"
	$(BIN)/python -m pytest -q -n 3 --dist worksteal -m "alone and not long"

long: setup ## process tests that take minutes: effects at each point of a turn, orders of kills, outages, clocks, poison
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m long

check: setup ## format, lint, types, layers, unit tests: under a minute
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/lint-imports
	$(BIN)/pyright
	$(BIN)/python -m pytest -q tests/unit

bench: setup ## the benchmark table, as ratios against the raw client in the same run
	$(BIN)/python -m benchmarks --json

sim: setup ## a long search of the fleet simulator: 2,000 seeds of ten simulated minutes
	$(BIN)/crewlet sim --seed 0 --seeds 2000 --hours 0.16666666666666666

mutants: setup ## plant each known bug and search for a seed of the simulator that catches it
	$(BIN)/python -m crewlet.testing.sim.mutants

lock: setup ## resolve the dependencies again
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --all-extras --python-version 3.11 pyproject.toml --output-file requirements.lock
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --extra llm --extra otel --python-version 3.11 --constraint requirements.lock pyproject.toml --output-file deploy/container/requirements.lock

clean: ## remove what the build made
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
