# Two commands need nothing but Python 3.10-3.12, make and a package index: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
BUF_VERSION := 1.75.0

.DEFAULT_GOAL := help
.PHONY: help demo test test-quick lint lint-proto proto format clean

help:
	@echo "make demo        train a small decoder with the callback against a fresh service (minutes)"
	@echo "make test        lint and the whole test suite (under 30 minutes)"
	@echo "make test-quick  the tests that take seconds (under 3 minutes)"
	@echo "make lint        ruff, mypy, import contracts, buf"
	@echo "make proto       write the generated modules again"
	@echo "make format      format the code"

$(BIN)/python:
	$(PYTHON) -c 'import sys; assert (3, 10) <= sys.version_info[:2] <= (3, 12), "MindSpore needs Python 3.10 to 3.12; give one: make PYTHON=python3.11 ..."'
	$(PYTHON) -m venv $(VENV)

# Stamps: what is installed follows pyproject.toml and constraints.txt.
$(VENV)/.service: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) --editable '.[service]'
	@touch $@

$(VENV)/.develop: $(VENV)/.service
	$(PIP_INSTALL) --editable '.[service,test,lint]'
	@touch $@

# The generator is older than the protobuf that the service runs on, so it lives in an environment of its own.
.venv-proto/.installed: proto/generator-requirements.txt
	$(PYTHON) -m venv .venv-proto
	.venv-proto/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

demo: $(VENV)/.service
	$(BIN)/python examples/train_docstrings.py

test: lint
	$(BIN)/python -m pytest

test-quick: $(VENV)/.develop .venv-proto/.installed
	$(BIN)/python -m pytest -m "not slow" --numprocesses 2 --dist loadfile

lint: $(VENV)/.develop lint-proto
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# buf comes as a binary in an npm package; where there is no npm, that is said and the rest goes on.
lint-proto: .venv-proto/.installed
	@mkdir -p build
	@proto/generate.sh .venv-proto/bin/python --image build/mindeval.binpb
	@if command -v npm >/dev/null && npm install --silent --no-save --prefix build/buf @bufbuild/buf@$(BUF_VERSION) >/dev/null 2>&1; \
	then build/buf/node_modules/.bin/buf lint build/mindeval.binpb --config proto/buf.yaml && echo "buf lint: clean"; \
	else echo "buf lint left out: npm or the package @bufbuild/buf is not to be had here"; fi

proto: .venv-proto/.installed
	proto/generate.sh .venv-proto/bin/python

format: $(VENV)/.develop
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
