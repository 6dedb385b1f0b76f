# Everything starts here: `make demo`, `make test`. Python 3.11 or newer and make are all that is needed.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready

# JAX's linear algebra runs on BLAS: one thread for each, or the two get into each other's way.
export OPENBLAS_NUM_THREADS := 1
export OMP_NUM_THREADS := 1

# The data set that `make demo` fits: any name that `dpplearn datasets` lists.
DEMO ?= swedishpines

# How many processes run the tests.
JOBS ?= 2

.PHONY: env test test-all test-docs lint docs demo bench clean

env: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt hatchling editables
	$(BIN)/pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev,tables]'
	touch $@

test: env
	$(BIN)/pytest -n $(JOBS)

test-all: env
	$(BIN)/pytest -n $(JOBS) -m "not docs"

test-docs: env
	$(BIN)/pytest -n $(JOBS) -m docs

lint: env
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

docs: env
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The last line that `dpplearn fit` prints is the path of its report, and nothing comes after it.
demo: env
	@rm -rf demo
	@$(BIN)/dpplearn fit $(DEMO) --out demo

bench: env
	@set -e; for script in benchmarks/bench_*.py; do echo "== $$script"; $(BIN)/python "$$script"; done
	$(BIN)/python benchmarks/page.py

clean:
	rm -rf .venv .cache .hypothesis .pytest_cache .ruff_cache build dist site demo
