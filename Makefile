# `make run` and `make test` need only Python 3.11+, make and PyPI.
PYTHON ?= python3
BIN := .venv/bin
ARGS ?=
# Keep compiled tests: rewriting their asserts takes each worker longer than running many of them.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n auto --dist worksteal

.PHONY: help setup run test test-long test-under-load test-peers check bench simulate fuzz clean

help:
	@echo "make setup       create .venv with the pinned dependencies and the compiled kernel"
	@echo "make run         run the live example: a site's events through the log into Spark"
	@echo "make test        run the tests, in about five minutes (needs only PyPI)"
	@echo "make test-long   run the long tests: more of Spark, kills and faults (needs only PyPI)"
	@echo "make test-under-load  run the tests three times beside a busy loop on every core [RUNS=3]"
	@echo "make test-peers  run the tests that need Debian, npm, Maven or Go packages"
	@echo "make check       run ruff, mypy and import-linter"
	@echo "make bench       run the benchmarks; ARGS=page writes docs/benchmarks.md from the kept results"
	@echo "make simulate    simulate clusters and clients under faults [SEEDS=100] [SEED=7] [BROKERS=1]"
	@echo "make fuzz        send hostile requests to every listener of a broker [REQUESTS=500000] [SEED=7]"
	@echo 'ARGS="..." is passed on, as in make test ARGS="-k recovery"'

setup:
	@$(PYTHON) tools/bootstrap.py

test: setup
	$(PYTEST) -m "not peer and not long" $(ARGS)

test-long: setup
	$(PYTEST) -m "long and not peer" $(ARGS)

test-under-load: setup
	$(BIN)/python tools/under_load.py --runs $(or $(RUNS),3) $(ARGS)

test-peers: setup
	PYTHONDONTWRITEBYTECODE= $(BIN)/python tools/test_peers.py $(ARGS)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python -m benchmarks $(ARGS)

run: setup
	@$(BIN)/penstock activity run $(ARGS)

simulate: setup
	@$(BIN)/python -m penstock.testing.simulation $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),100)) $(if $(BROKERS),--brokers $(BROKERS)) $(ARGS)

fuzz: setup
	@$(BIN)/python -m tests.hostile.fuzz --requests $(or $(REQUESTS),500000) $(if $(SEED),--seed $(SEED)) $(ARGS)

clean:
	rm -rf .venv build src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src -name '_kernel*.so' -delete
