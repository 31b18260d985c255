# One environment, made once: a target starts at once when neither of the two files has changed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
DOCS   := $(VENV)/.ready-docs

.PHONY: demo test lint bench results docs clean

demo: $(READY)
	$(BIN)/difformer demo

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --cov --cov-report=term

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(READY)
	$(BIN)/difformer bench

# Writes the tables of README.md and docs/reproduce.md anew from the result files.
results: $(READY)
	$(BIN)/difformer reproduce --readme

docs: $(DOCS)
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build dist site htmlcov .coverage .pytest_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

$(DOCS): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch $@
