# Every target sets up .venv by itself; the second time it is quick.
#
#   make demo         the main job on a real water-flow sensor and simulated turbines, no broker needed
#   make test         everything once; a real Kafka broker included where Java 17+ and Maven are present
#   make test-quick   what a change needs first: no broker, no browser, 90 seconds on two cores
#   make test-all     the same proofs for every client, detector and codec; what CI runs each night
#   make check        ruff, mypy, and what the text of the repository has to be
#   make format       put the code into shape, fix what ruff can
#   make native       build the native core and put it beside the Python one; needs Rust's cargo
#   make native-test  tests and lints of the native core's Rust; needs cargo and clippy
#   make bench        benchmarks of the core, into benchmarks/results/
#   make broker       a real single-node Kafka for development, until Ctrl-C
#   make soak         the long proofs (100 SIGKILLs, outages), results into benchmarks/results/soak.md; an hour or more
#   make mutants      break the code in known places: each time the test that holds it has to fall
#   make test-bounds  core tests at both ends of every bound, on each Python that is here
#   make test-deep    the PyTorch detector, in a virtual environment of its own
#   make test-spark   the same bytes from Spark, in a virtual environment of its own; minutes
#   make test-wheel   what packaging can break, against the built wheel
#   make constraints  exact versions: the image's with hashes, and a lean install's (UV_ARGS=--upgrade: the newest)
#   make dist         what a release ships, built and tried as users get it; tags and uploads nothing
#   make sbom         the bill of materials of what the image installs, CycloneDX, into dist/
#   make docs         the documentation as a site, into site/; fails on a dead link
#   make clean        remove what the others made
#
# PYTHON=python3.12 takes another Python, PYTEST_ARGS="-x -k window" goes to pytest ("-n 0": one process).

PYTHON ?= python3
BIN := .venv/bin
UV := $(BIN)/python -m tools.installing
PYTEST_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-quick mutants check format bench native native-test broker soak test-bounds test-deep test-spark test-wheel constraints dist sbom docs clean

help:
	@sed -n 's/^#   //p' Makefile

.venv/bin/python:
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ": call make PYTHON=/path/to/python3.11"'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip

.venv/run.stamp: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[review]'
	@touch $@

.venv/dev.stamp: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet 'uv>=0.8'
	$(UV) pip install --python $(BIN)/python --editable '.[dev]'
	@touch $@ .venv/run.stamp

demo: .venv/run.stamp
	$(BIN)/rejex-stream demo $(DEMO_ARGS)

# Else every program that a test starts would compile all that it imports, which takes seconds.
unexport PYTHONDONTWRITEBYTECODE

# Three workers on two cores, file by file: one of them mostly waits, for a broker that all share.
SPREAD := -n 3 --dist loadfile --no-loadscope-reorder

test: .venv/dev.stamp
	$(BIN)/python -m pytest $(SPREAD) -m "not slow and not long and not text" $(PYTEST_ARGS)

test-all: .venv/dev.stamp
	$(BIN)/python -m pytest $(SPREAD) -m "not slow and not text" $(PYTEST_ARGS)

test-quick: .venv/dev.stamp
	$(BIN)/python -m pytest -n 2 tests --ignore tests/benchmarks --ignore tests/kafka --ignore tests/spark \
	  -m "not slow and not long and not thorough and not text and not kafka and not browser and not prometheus and not deep and not spark" \
	  $(PYTEST_ARGS)

check: .venv/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -n 0 -m text tests/test_imports.py tests/test_architecture.py \
	  tests/test_contributing.py tests/test_installed.py tests/test_waiting.py
	$(BIN)/python -m tools.mutants --list >/dev/null || $(BIN)/python -m tools.mutants --list

mutants: .venv/dev.stamp
	$(BIN)/python -m tools.mutants

format: .venv/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Optional: `rejex-stream doctor` says which core judges, and REJEX_CORE=python leaves it aside.
native: .venv/run.stamp
	@command -v cargo >/dev/null || { echo "make native: cargo is not here: install Rust (https://rustup.rs), or go without"; exit 1; }
	$(BIN)/python -m pip install --quiet --no-deps --force-reinstall ./native
	REJEX_CORE= $(BIN)/python -c 'from rejex_stream.native_core import core; native, why = core(); print(why); raise SystemExit(native is None)'

native-test:
	@command -v cargo >/dev/null || { echo "make native-test: cargo is not here: install Rust (https://rustup.rs)"; exit 1; }
	cargo test --quiet --manifest-path native/Cargo.toml
	cargo clippy --quiet --all-targets --manifest-path native/Cargo.toml -- -D warnings

bench: .venv/dev.stamp
	$(BIN)/python -m benchmarks

broker: .venv/dev.stamp
	$(BIN)/python tools/kafka/broker.py

soak: .venv/dev.stamp
	REJEX_SOAK_RESULTS=benchmarks/results/soak.md $(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

test-deep: .venv-deep/deep.stamp
	REJEX_REQUIRE_DEEP=1 .venv-deep/bin/python -m pytest -m deep $(PYTEST_ARGS)

.venv-deep/deep.stamp: pyproject.toml
	$(PYTHON) -m venv .venv-deep
	.venv-deep/bin/python -m pip install --quiet --upgrade pip
	.venv-deep/bin/python -m pip install --quiet --editable '.[dev,deep]'
	@touch $@

# Each test has its limit; all of them have an hour.
test-spark: .venv-spark/spark.stamp
	REJEX_REQUIRE_SPARK=1 timeout 3600 .venv-spark/bin/python -m pytest -m spark tests/spark $(PYTEST_ARGS)

# The version of Spark is that of the connector in tools/spark/cluster.py.
.venv-spark/spark.stamp: pyproject.toml | .venv/dev.stamp
	$(PYTHON) -m venv .venv-spark
	$(UV) pip install --python .venv-spark/bin/python --editable '.[dev,spark]' pyspark==4.2.0
	@touch $@

test-bounds: .venv/dev.stamp
	$(BIN)/python tools/test-bounds

# What users install is the wheel: the tests run from a copy, with the sources out of reach.
test-wheel: .venv/dev.stamp
	tools/test-wheel $(PYTEST_ARGS)

constraints: .venv/dev.stamp
	$(UV) pip compile pyproject.toml --output-file constraints.txt \
	  --universal --python-version 3.11 --no-annotate --custom-compile-command "make constraints" \
	  --extra review --extra select --extra confluent --extra registry --extra parquet --extra excel $(UV_ARGS)
	$(UV) pip compile pyproject.toml --output-file deploy/lean.txt \
	  --universal --python-version 3.11 --no-annotate --custom-compile-command "make constraints" \
	  --override deploy/lean-without.txt --constraint constraints.txt
	@sed -i "/sys_platform == 'never'/d" deploy/lean.txt
	$(UV) pip compile pyproject.toml --output-file deploy/image.txt --generate-hashes \
	  --universal --python-version 3.11 --no-annotate --custom-compile-command "make constraints" \
	  --extra review --extra select --extra confluent --extra registry --constraint constraints.txt

dist: .venv/dev.stamp
	$(BIN)/python -m tools.release $(DIST_ARGS)
	$(MAKE) --no-print-directory sbom

sbom: .venv/dev.stamp
	@mkdir -p dist
	PYTHONWARNINGS=ignore $(UV) tool run --from cyclonedx-bom cyclonedx-py requirements deploy/image.txt \
	  --pyproject pyproject.toml --output-format JSON --output-file dist/sbom.json

docs: .venv/dev.stamp
	$(BIN)/python -m tools.site site

clean:
	rm -rf .venv .venv-deep .venv-spark build dist site *.egg-info artifacts demo-output native/target
