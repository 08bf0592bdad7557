# `make` alone lists the targets. Needs make, bash and Python 3.11 or newer; all else goes into .venv.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check soak clean

# With more threads than one a small MaxSim took 8 s instead of 0.2 s.
export OPENBLAS_NUM_THREADS := 1

PYTHON := .venv/bin/python
PAGEGATE := .venv/bin/pagegate
PIP_INSTALL := $(PYTHON) -m pip install --quiet --disable-pip-version-check
FOR_DEMO := .venv/.installed-demo
FOR_TESTS := .venv/.installed-tests

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(firstword $(MAKEFILE_LIST))

demo: export PAGEGATE_HOME := .demo/home
demo: $(FOR_DEMO) ## write sample documents, ingest them, ask one Chinese and one English question
	@rm -rf .demo
	$(PYTHON) -m scripts.samples .demo/documents
	$(PAGEGATE) ingest .demo/documents --org demo
	$(PAGEGATE) status --org demo
	$(PAGEGATE) search "新机床运行多少小时后第一次更换液压油？" --org demo -k 3
	$(PAGEGATE) search "Which wheel run-out was measured at the acceptance test?" --org demo -k 3

test: $(FOR_TESTS) ## run all tests against real services (ARGS="-k name" is passed to pytest)
	@trap 'scripts/services stop' EXIT; \
	if scripts/services start; then \
	    eval "$$(scripts/services env)"; \
	elif [ "$${CI:-}" = true ]; then \
	    exit 3; \
	else \
	    echo "make test: no services; the tests that need them are skipped" >&2; \
	fi; \
	if [ "$${CI:-}" = true ]; then export PAGEGATE_TEST_REQUIRE_SERVICES=1; fi; \
	$(PYTHON) -m pytest $(ARGS)

check: $(FOR_TESTS) ## ruff, mypy --strict and the unit tests; needs no services and no network
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) -m pytest tests/unit

soak: $(FOR_TESTS) ## kill processes at random, for half an hour (ARGS="--kills 300 --seed 7"); goes on where it ended
	$(PYTHON) -m scripts.soak $(ARGS)
	PAGEGATE_MODEL_EXAMPLES=2000 $(PYTHON) -m pytest --timeout 0 tests/model

clean: ## stop the services and delete what the other targets wrote, except .venv
	scripts/services stop
	rm -rf .demo .pagegate .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist

$(FOR_DEMO): pyproject.toml | $(PYTHON)
	@echo "installing pagegate[ocr] into .venv (about a minute)" >&2
	@$(PIP_INSTALL) -e '.[ocr]'
	@touch $@

$(FOR_TESTS): pyproject.toml | $(PYTHON)
	@echo "installing pagegate[ocr,cluster,dev] into .venv (about a minute)" >&2
	@$(PIP_INSTALL) -e '.[ocr,cluster,dev]'
	@touch $(FOR_DEMO) $@

# Debian keeps ensurepip, without which there is no venv, in a package of its own.
$(PYTHON):
	@for python in python3.11 python3 none; do \
	    if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then break; fi; \
	done; \
	if [ $$python = none ]; then \
	    echo "make: Python 3.11 or newer is needed; found: $$(python3 --version 2>&1 || true)" >&2; exit 2; \
	fi; \
	if ! $$python -c 'import ensurepip, venv' 2>/dev/null; then \
	    if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	        { apt-get install -y python3-venv || { apt-get update && apt-get install -y python3-venv; }; } >&2; \
	    else \
	        echo "make: $$python has no venv module: install it (Debian: apt-get install python3-venv)" >&2; exit 2; \
	    fi; \
	fi; \
	$$python -m venv .venv
