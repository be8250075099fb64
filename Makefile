# The two commands of the README. Each does all its own set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test docs lint types clean

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(VENV)/installed
	$(BIN)/python examples/demo.py

test: $(VENV)/installed lint types
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m 'not alone'
	$(BIN)/python -m pytest -m alone

docs: $(VENV)/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python -m mkdocs build --strict --quiet

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed
	$(BIN)/mypy -n 2

clean:
	rm -rf $(VENV) build runs demo .pytest_cache .mypy_cache .ruff_cache
