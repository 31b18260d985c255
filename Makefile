# Environments are made once: a target starts at once when neither of the two files has changed.
# `make demo` installs what it needs, a GCN included; test, lint and docs add their tools to the same place.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RUN    := $(VENV)/.ready-run
READY  := $(VENV)/.ready
DOCS   := $(VENV)/.ready-docs

# uv is several times faster than pip. It does not read pip's settings, hence the links.
UV      := $(shell command -v uv 2>/dev/null)
INSTALL := $(if $(UV),UV_FIND_LINKS="$(PIP_FIND_LINKS)" $(UV) pip install --quiet --python $(BIN)/python,\
             $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check)

# Where this is set, every process compiles torch and all other libraries anew: three times as long to start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test coverage ray ready lint size bench results docs wheel clean

demo: $(RUN)
	$(BIN)/difformer demo

# Three at once on two cores: tests that start processes wait for them. A worker takes tests in the order of their
# files, so that a module's fixtures are made once, and then those that another has not begun.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist worksteal

# The same, and which lines no test runs: half as long again.
coverage: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --cov --cov-report=term

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

# Lines, names, settings and files per walk, beside the maxima of size.toml.
size: $(READY)
	$(BIN)/python scripts/size.py --walks

# All tools of test, lint and docs.
ready: $(DOCS)

# Ray is large: its tests skip where this was not made.
ray: $(READY)
	$(INSTALL) -c constraints.txt -e ".[ray]"

bench: $(READY)
	$(BIN)/difformer bench

# Writes the tables of README.md and docs/reproduce.md anew from the result files.
results: $(RUN)
	$(BIN)/difformer reproduce --readme

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/python -m mkdocs build --strict

# Builds sdist and wheel, and tries the wheel alone in an empty environment.
wheel: $(READY)
	$(BIN)/python scripts/try_wheel.py

clean:
	rm -rf $(VENV) build dist site htmlcov .coverage .pytest_cache .ruff_cache .hypothesis

$(RUN): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -c constraints.txt -e ".[paper]"
	touch $@

$(READY): $(RUN)
	$(INSTALL) -c constraints.txt -e ".[dev]"
	touch $@

$(DOCS): $(READY)
	$(INSTALL) -c constraints.txt -e ".[docs]"
	touch $@
