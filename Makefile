# `make demo` and `make test` need Python 3.11+, make and a package index; everything else is set up here.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-test
DEMO_STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.installed-docs

.PHONY: demo docs test test-full test-faults test-kills test-mutations fuzz lint clean

demo: $(DEMO_STAMP)
	$(BIN)/understudy demo --out demo

docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

test: $(STAMP)
	$(BIN)/pytest -n 2 -m "not slow"

test-full: $(STAMP) $(DOCS_STAMP)
	$(BIN)/pytest -n 2
	$(MAKE) test-faults fuzz test-mutations

test-faults: $(STAMP)
	$(BIN)/python -m campaigns.faults.campaign --json benchmarks/results/faults.json

test-kills: $(STAMP)
	$(BIN)/python -m campaigns.faults.killed_processes --json benchmarks/results/killed-processes.json

fuzz: $(STAMP)
	$(BIN)/python -m campaigns.hostile.fuzz --json benchmarks/results/fuzz.json

test-mutations: $(STAMP)
	$(BIN)/python -m campaigns.mutations.run --write docs/mutations.md

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python benchmarks/results_page.py --check

clean:
	rm -rf $(VENV) demo site .pytest_cache .hypothesis .mypy_cache .ruff_cache dist

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; pass PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(DEMO_STAMP): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(STAMP): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test]"
	touch $@

$(DOCS_STAMP): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch $@
