# make demo      the main job on real molecules
# make demo-jax  the same in JAX
# make test      the tests
# make lint      linter and type checker
# Each sets up .venv first.

PYTHON ?= python3
BIN := .venv/bin

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[torch,jax,examples,test,dev]"
	touch .venv/ready

.PHONY: demo demo-jax test lint clean
demo: .venv/ready
	$(BIN)/python examples/molecules.py

demo-jax: .venv/ready
	$(BIN)/python examples/molecules_jax.py

test: .venv/ready
	$(BIN)/python -m pytest

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf .venv out
