# Every target makes its own environment in .venv, from pyproject.toml and whatever package index pip is configured for.
# Another Python: make clean, then make test PYTHON=python3.13. Some tests only: make test ARGS="-k undo".

PYTHON ?= python3
ARGS ?=
MINUTES ?= 1
WORKERS ?= 1
SEED ?=
BIN := .venv/bin
STAMP := .venv/stamp

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help:  ## show this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

# The stamp is written last: an environment that was interrupted half-way is made again from nothing.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "opslog needs Python 3.11 or newer; '$(PYTHON)' is not: name one that is, as in: make test PYTHON=python3.12" >&2; \
		exit 1; }
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

.PHONY: demo
demo: $(STAMP)  ## several processes share a store and its tasks, one is killed; nothing is lost
	$(BIN)/opslog demo $(ARGS)

.PHONY: test
test: $(STAMP)  ## the tests, on all cores; at most eight minutes on two
	$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

.PHONY: test-all
test-all: $(STAMP)  ## all tests but the slow ones: also long ones, as real S3 servers and power cuts
	$(BIN)/python -m pytest -m "not slow" -n auto --dist worksteal $(ARGS)

.PHONY: test-slow
test-slow: $(STAMP)  ## the slow tests: many repeats, large sizes; takes long
	$(BIN)/python -m pytest -m slow --timeout 1800 $(ARGS)

.PHONY: fuzz
fuzz: $(STAMP)  ## damage and forge files at random, for MINUTES=1 or more; ARGS="--seed 7 log" for one seed, one target
	$(BIN)/python -m tests.fuzz.run --minutes $(MINUTES) $(ARGS)

# One seed again: make simulate SEED=658. It prints the first seed that it ran, and of a failure all that happened.
.PHONY: simulate
simulate: $(STAMP)  ## many agents on simulated storage, with everything that goes wrong; MINUTES=30 WORKERS=2, or SEED=658
	$(BIN)/python -m tests.simulation --minutes $(MINUTES) --workers $(WORKERS) $(if $(SEED),--seed $(SEED)) $(ARGS)

# Type checkers of users read an installed wheel, so ours does too: it runs where the tree's own opslog/ cannot be imported,
# with the tests, benchmarks and examples linked beside the wheel's content.
.PHONY: check
check: $(STAMP)  ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheel .
	$(BIN)/python -m pip install --quiet --no-deps --no-compile --target build/types build/wheel/*.whl
	ln -s ../../tests ../../benchmarks ../../examples build/types
	cd build/types && ../../$(BIN)/mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache opslog tests benchmarks examples

.PHONY: format
format: $(STAMP)  ## rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: bench
bench: $(STAMP)  ## measure everything beside the peers, and write docs/benchmarks.md; takes half an hour
	$(BIN)/python -m benchmarks --page docs/benchmarks.md $(ARGS)

DOCS := .venv-docs/bin

.venv-docs/stamp: pyproject.toml
	$(PYTHON) -m venv --clear .venv-docs
	$(DOCS)/python -m pip install --quiet --disable-pip-version-check '.[docs]'
	@touch $@

.PHONY: docs
docs: .venv-docs/stamp  ## the site of docs/, in build/site; whatever is doubtful in it is an error
	NO_MKDOCS_2_WARNING=1 $(DOCS)/mkdocs build --strict --clean --quiet $(ARGS)
	@echo "open build/site/index.html, or serve it: $(DOCS)/mkdocs serve"

.PHONY: release
release: $(STAMP)  ## wheel and sdist in dist/, checked, and installed and used on each Python here; publishes nothing
	.ci/release $(ARGS)

.PHONY: clean
clean:  ## remove everything that make and the tools wrote
	rm -rf .venv .venv-docs build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
