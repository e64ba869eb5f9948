# make demo    set up, then generate text from the embedded model
# make test    set up, then run the whole test suite, in WORKERS processes (2)
# make notebooks  set up, then run every notebook from a fresh kernel, two at a time; NOTEBOOKS='--write' keeps outputs
# make lint    style and types
# make setup   only set up: .venv with minfer and all that tests and notebooks need
#
# PYTHON=python3.12   the interpreter to set up with (3.10 to 3.13)
# PIP_ARGS=...        more arguments for pip, such as another index: see the README about a CPU-only torch

PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt $(PIP_ARGS)
WORKERS ?= 2
NOTEBOOKS ?=
# The plugins that the suite needs: to import, and to rewrite, all that are installed takes seconds in each worker
PLUGINS := --disable-plugin-autoload -p xdist -p pytest_timeout
PROMPT := KING RICHARD:

.PHONY: demo test notebooks lint setup
.DELETE_ON_ERROR:

demo: $(VENV)/.core
	@printf '\n%s' '$(PROMPT)'
	@$(BIN)/minfer generate '$(PROMPT)' --max-tokens 120 --temperature 0.7 --seed 1

test: setup
	$(BIN)/python -m pytest $(PLUGINS) --numprocesses $(WORKERS) --dist worksteal

notebooks: setup
	$(BIN)/python -m scripts.notebooks $(NOTEBOOKS)

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

setup: $(VENV)/.dev

# .core and .dev are empty files that say what is installed; pip runs again when one of these two files is newer.
$(VENV)/.dev: $(VENV)/.core
	$(PIP_INSTALL) --editable '.[dev]'
	@touch $@

$(VENV)/.core: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 10) <= v <= (3, 13) or sys.exit("minfer needs Python 3.10 to 3.13, $(PYTHON) is %d.%d: run make with PYTHON=python3.12, say" % v)'
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --quiet --editable '.[hf,gguf,plots]'
	@touch $@
