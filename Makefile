# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test histories check schemas clean

# virtualenv rather than venv: a Debian without python3-venv has no ensurepip.
$(VENV)/bin/python:
	$(PYTHON) -m pip install --quiet --target .build/virtualenv virtualenv
	PYTHONPATH=.build/virtualenv $(PYTHON) -m virtualenv --quiet $(VENV)

$(VENV)/.demo: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --editable '.[demo]'
	touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --editable '.[dev,demo]'
	touch $@ $(VENV)/.demo

demo: $(VENV)/.demo
	$(BIN)/python examples/demo/main.py

# What CI runs: lint, types, layers, then every test that is not marked slow.
test: check
	$(BIN)/python -m pytest -m 'not slow'

# Longer recordings than those in `make test`, SeaweedFS too: 10 minutes.
histories: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow tests/histories

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

schemas: $(VENV)/.dev
	$(BIN)/python -m fray_layouts.schemas layouts/schemas

clean:
	rm -rf $(VENV) .build
