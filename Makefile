# Every target does its own set-up in .venv, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-slow mutants lint types bench bench-large docs clean

demo: $(VENV)/.core
	$(BIN)/orbitset demo --overwrite

test: lint types
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow

mutants: $(VENV)/.dev
	for package in losses evaluation orbits encoders; do \
		OMP_NUM_THREADS=1 $(BIN)/python benchmarks/mutants.py $$package --out runs/mutants-$$package.json || exit; \
	done

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy

bench: $(VENV)/.bench $(VENV)/.search
	$(BIN)/python benchmarks/mining.py
	$(BIN)/python benchmarks/verification.py
	$(BIN)/python benchmarks/training.py --device cpu
	$(BIN)/python benchmarks/scaling.py --device cpu
	$(BIN)/python benchmarks/embedding.py
	$(BIN)/python benchmarks/search.py

bench-large: $(VENV)/.search
	$(BIN)/python benchmarks/search.py --codes 1000000 --out benchmarks/results/search-large-cpu.json

docs: $(VENV)/.docs
	$(BIN)/python docs/generate.py
	$(BIN)/mkdocs build --quiet --strict

clean:
	rm -rf $(VENV) site .mypy_cache .pytest_cache .ruff_cache

$(VENV)/.core: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: orbitset needs Python 3.11 or later; try make PYTHON=python3.12" >&2; exit 1; }
	@echo "Setting up $(VENV) (once, a minute or two)" >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) torch
	@$(PIP) -e .
	@touch $@

$(VENV)/.dev $(VENV)/.bench $(VENV)/.search $(VENV)/.docs: $(VENV)/.%: $(VENV)/.core
	@$(PIP) -e '.[$*]'
	@touch $@
