# Every target sets up .venv by itself; the second time it is quick.
#
#   make demo      the main job on a real water-flow sensor and simulated turbines, no broker needed
#   make test      everything; a real Kafka broker included where Java 17+ and Maven are present
#   make check     ruff and mypy
#   make bench     benchmarks of the core, into benchmarks/results/
#   make broker    a real single-node Kafka for development, until Ctrl-C
#   make soak      the long proofs (100 SIGKILLs, outages); tens of minutes
#   make test-deep the PyTorch detector, in a virtual environment of its own
#   make test-wheel the unit tests against the built wheel

PYTHON ?= python3
BIN := .venv/bin
PYTEST_ARGS ?=

.PHONY: demo test check format bench broker soak test-deep test-wheel clean

.venv/bin/python:
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ": call make PYTHON=/path/to/python3.11"'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip

.venv/run.stamp: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[review]'
	@touch $@

.venv/dev.stamp: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ .venv/run.stamp

demo: .venv/run.stamp
	$(BIN)/rejex-stream demo $(DEMO_ARGS)

test: .venv/dev.stamp
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_ARGS)

check: .venv/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/dev.stamp
	$(BIN)/python -m benchmarks

broker: .venv/dev.stamp
	$(BIN)/python tools/kafka/broker.py

soak: .venv/dev.stamp
	$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

test-deep: .venv-deep/deep.stamp
	REJEX_REQUIRE_DEEP=1 .venv-deep/bin/python -m pytest -m deep $(PYTEST_ARGS)

.venv-deep/deep.stamp: pyproject.toml
	$(PYTHON) -m venv .venv-deep
	.venv-deep/bin/python -m pip install --quiet --upgrade pip
	.venv-deep/bin/python -m pip install --quiet --editable '.[dev,deep]'
	@touch $@

# What users install is the wheel: the tests run from a copy, with the sources out of reach.
test-wheel: .venv/dev.stamp
	tools/test-wheel $(PYTEST_ARGS)

clean:
	rm -rf .venv .venv-deep build dist *.egg-info artifacts demo-output
