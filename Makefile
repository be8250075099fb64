# The two commands of the README. Each does all its own set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint types clean

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(VENV)/installed
	$(BIN)/python examples/demo.py

test: $(VENV)/installed lint types
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m 'not alone'
	$(BIN)/python -m pytest -m alone

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed
	$(BIN)/mypy

clean:
	rm -rf $(VENV) runs demo .pytest_cache .mypy_cache .ruff_cache
