# Needs make and Python ≥ 3.11, nothing else: `.venv` is made from uv.lock, uv comes from the package index if absent.

.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Without bytecode every one of the thousand processes that tests start compiles what it imports: 3 s each in place of 1.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help demo test quick check fuzz bench bars release audit docs clean

# The first Python that is new enough; a name that exists but cannot run (a version manager's stub) is passed over.
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3 python; do \
    "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo "$$python" && break; done)
BIN := .venv/bin
RUN := .venv/.ready-to-run
DEVELOP := .venv/.ready-to-develop
FIND_PYTHON = test -n "$(PYTHON)" || { echo "cannot set up: no Python ≥ 3.11 among python3.13, python3.12, python3.11 and" \
    "python3; install one, or say make PYTHON=/path/to/python" >&2; exit 2; }

# Kernels are compiled by the set-up, so that no run waits for the compiler.
COMPILE = echo "compiling kernels" && $(BIN)/python -m gputide.kernels.compile

# Quiet, it would be silent about what makes it fail.
SITE = told="$$(NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build 2>&1)" || { echo "$$told" | grep -v INFO >&2; exit 1; }

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-7s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(RUN) ## the whole loop on a synthetic fleet, then the web page (ARGS="--once" ends after the summary)
	@$(BIN)/gputide demo $(ARGS)

test: $(DEVELOP) ## every tier of tests that this machine can run; names what it skipped, and why
	@$(BIN)/python tests/run_tiers.py

quick: $(DEVELOP) ## the quick tier alone (ARGS="-k late" goes to pytest)
	@$(BIN)/python tests/run_tiers.py quick -- $(ARGS)

check: $(DEVELOP) ## lint, format, strict types, who may import whom, house style, licences
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(MAKE) -j 2 check-types check-house

# Types take as long on a core as all the rest; tests of the repository that take seconds are in the tier long.
check-types:
	@$(BIN)/mypy
	@bars="$$(grep -lE '^#!.*python' bench/bars/* 2>/dev/null || true)"; \
	    [ -z "$$bars" ] || $(BIN)/mypy --scripts-are-modules $$bars

check-house:
	@$(BIN)/lint-imports --no-logo
	@$(SITE)
	@$(BIN)/python -m pytest -q -m "not long" tests/repository

fuzz: $(DEVELOP) ## hostile inputs to every parser, a million of them (ARGS="NUMBER [FIRST SEED]"; 0 goes on for ever)
	@$(BIN)/python -m tests.fuzz.run_all $(ARGS)

bench: $(DEVELOP) ## every benchmark under bench/: ratios against a named baseline, on the same bytes, in the same run
	@for benchmark in bench/bench_*.py; do \
	    [ -e "$$benchmark" ] || { echo "no bench/bench_*.py"; break; }; \
	    echo "== $$benchmark"; PYTHONPATH=. $(BIN)/python "$$benchmark"; done

bars: $(DEVELOP) ## every bar under bench/bars/: a JSON line each as it comes, a table at the end (ARGS="NAME …" picks)
	@PYTHONPATH=. $(BIN)/python bench/bars_table.py $(ARGS)

release: $(DEVELOP) ## what a release publishes, into dist/: wheel, sources, bill of materials, licences, chart, checksums
	@$(BIN)/python -m deploy.release.build

audit: $(DEVELOP) ## known vulnerabilities of all locked packages; 5 where the advisory database can't be asked
	@$(BIN)/python -m deploy.release.audit $(ARGS)

docs: $(DEVELOP) ## the documentation as a site in build/site, English and Chinese; reads without a server
	@$(SITE) && echo "build/site/index.html"

clean: ## remove what the set-up, the tests and the checkers made here (never a data folder of gputide)
	@rm -rf .venv .bootstrap .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUN): pyproject.toml uv.lock bootstrap.py
	@$(FIND_PYTHON) && "$(PYTHON)" bootstrap.py run && $(COMPILE) && touch $@

$(DEVELOP): pyproject.toml uv.lock bootstrap.py
	@$(FIND_PYTHON) && "$(PYTHON)" bootstrap.py develop && $(COMPILE) && touch $(RUN) $@
