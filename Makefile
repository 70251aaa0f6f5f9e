# Needs Python 3.11 or newer and make; everything else is installed into .venv.
#
#   make install   the package, editable, for users
#   make dev       the same with everything that the tests need
#   make demo      decompose, measure and reconstruct real models; results in demo/
#   make test      ruff, mypy and the tests; of long sweeps a sample
#   make test-all  the same with every case of every sweep
#   make quick     the tests of models, bricks, database and constructor: less than a minute
#   make fmt       ruff mends and formats the code
#   make docs      the documents as a site with search, in build/site
#   make clean     remove what the other targets made (demo/ stays)

# The first interpreter that runs and is new enough; PYTHON=... overrides it.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	"$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)

BIN := .venv/bin
unexport PYTHONDONTWRITEBYTECODE  # else each of the hundreds of processes that tests start compiles all it imports
# constraints.txt pins the versions that the tests last passed with, also for the isolated build environment.
PIP := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip --disable-pip-version-check install --quiet

# Modules stay together, so that what they prepare is made once, until a process that is done takes some of another's.
PYTEST := $(BIN)/pytest -n auto --dist worksteal

.PHONY: install dev demo docs test test-all test-rest quick fmt lint clean

install: .venv/.installed

dev: .venv/.installed-dev

demo: .venv/.installed
	$(BIN)/dlbricks demo

test: lint
	$(PYTEST)

test-all: lint
	$(PYTEST) --sweep all

test-rest: .venv/.installed-dev  # what 'make test' leaves out
	$(PYTEST) --sweep rest

quick: .venv/.installed-dev
	$(PYTEST) tests/models tests/bricks tests/db tests/constructor tests/test_architecture.py

fmt: .venv/.installed-dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

lint: .venv/.installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	mkdir -p .cache && ln -sfn .. .cache/dlbricks  # mypy wants a folder whose name is the package's
	$(BIN)/mypy .cache/dlbricks

docs: .venv/.installed-dev  # to read it: python -m http.server -d build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# Stamps: a target installs again only after pyproject.toml or constraints.txt changed.
.venv/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable .
	touch $@

.venv/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[dev]'
	touch $@ .venv/.installed

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "make: no Python >= 3.11 with venv found; set PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv .venv

clean:
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist dlbricks.egg-info
