# make demo       the main job on real molecules
# make demo-jax   the same in JAX
# make test       the tests: every property, a part of the combinations
# make test-rest  all that `make test` leaves out
# make wheel      the wheels, in dist/
# make lint       linter and type checker
# make test-torch VERSION=2.8.0   the PyTorch tests with another release of PyTorch (2.8.0, 2.14.1), in .venv-torch-VERSION
# Each sets up its virtual environment first.

PYTHON ?= python3
BIN := .venv/bin
VERSION ?= 2.8.0
TORCH_VENV ?= .venv-torch-$(VERSION)

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --constraint constraints.txt torch
	$(BIN)/pip install --constraint constraints.txt --editable ".[torch,jax,examples,test,dev]"
	touch .venv/ready

$(TORCH_VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(TORCH_VENV)
	grep -v '^torch==' constraints.txt > $(TORCH_VENV)/constraints.txt
	echo 'torch==$(VERSION)' >> $(TORCH_VENV)/constraints.txt
	$(TORCH_VENV)/bin/pip install --constraint $(TORCH_VENV)/constraints.txt --editable ".[torch,test]"
	touch $@

.PHONY: demo demo-jax test test-rest test-torch lint wheel clean
demo: .venv/ready
	$(BIN)/python examples/molecules.py

demo-jax: .venv/ready
	$(BIN)/python examples/molecules_jax.py

# Two processes, each with half of the tests until one has none left.
PYTEST := python -m pytest --numprocesses 2 --dist worksteal
test: .venv/ready
	$(BIN)/$(PYTEST) -m "not rest"

test-rest: .venv/ready
	$(BIN)/$(PYTEST) -m rest

# No JAX there, and nothing but Warp's launchers is left out.
test-torch: $(TORCH_VENV)/ready
	$(TORCH_VENV)/bin/$(PYTEST) tests/torch tests/native $(wildcard tests/test_*.py) -k "not jax"

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/mypy

wheel:
	$(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/pip wheel --no-deps --wheel-dir dist . ./interface
	rm -rf .venv-wheel

clean:
	rm -rf .venv .venv-torch-* .venv-wheel out dist
