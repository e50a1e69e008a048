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

# The kernel in C, where a compiler is. Without one this prints a warning, and Python does the same.
KERNEL := .venv/kernel
$(KERNEL): $(STAMP) setup.py opslog/kernel/_kernel.c
	$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

.PHONY: demo
demo: $(KERNEL)  ## several processes share a store and its tasks, one is killed; nothing is lost
	$(BIN)/opslog demo $(ARGS)

.PHONY: test
test: $(KERNEL)  ## the tests, on all cores; about eight minutes on two
	$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

.PHONY: test-all
test-all: $(KERNEL)  ## all tests but the slow ones: also long ones, as real S3 servers and power cuts
	$(BIN)/python -m pytest -m "not slow" -n auto --dist worksteal $(ARGS)
	$(MAKE) test-python

# What reads and writes lines and documents.
WITHOUT_KERNEL := $(addprefix tests/,fuzz store/test_damage.py store/test_documents.py store/test_large_snapshots.py tables/test_layers.py \
	test_commits.py test_log.py test_merge.py test_snapshot.py test_stamps.py test_state_machine.py test_survey.py test_torn.py test_undo.py)

.PHONY: test-python
test-python: $(KERNEL)  ## the tests of what the kernel does, without the kernel: on the Python that it must equal
	OPSLOG_KERNEL=0 $(BIN)/python -m pytest -q -n auto --dist worksteal $(WITHOUT_KERNEL)

# A finding ends the process, and so the tests.
.PHONY: sanitize
sanitize: $(STAMP)  ## the tests of the kernel on a build with AddressSanitizer and UBSan; needs gcc
	rm -rf build
	OPSLOG_KERNEL_FLAGS="-g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all" \
		$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheel .
	$(BIN)/python -m pip install --quiet --no-deps --no-compile --target build/sanitize build/wheel/*.whl
	ln -s ../../tests build/sanitize
	cp pyproject.toml build/sanitize
	cd build/sanitize && LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
		ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 PYTHONMALLOC=malloc PYTHONPATH=. \
		../../$(BIN)/python -m pytest -q -p no:cacheprovider tests/kernel $(ARGS)

.PHONY: test-slow
test-slow: $(KERNEL)  ## the slow tests: many repeats, large sizes; takes long
	$(BIN)/python -m pytest -m slow --timeout 1800 $(ARGS)

.PHONY: fuzz
fuzz: $(KERNEL)  ## damage and forge files at random, for MINUTES=1 or more; ARGS="--seed 7 log" for one seed, one target
	$(BIN)/python -m tests.fuzz.run --minutes $(MINUTES) $(ARGS)

# One seed again: make simulate SEED=658. It prints the first seed that it ran, and of a failure all that happened.
.PHONY: simulate
simulate: $(KERNEL)  ## many agents on simulated storage, with everything that goes wrong; MINUTES=30 WORKERS=2, or SEED=658
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

# Apart from an install, where a warning of some compiler must not cost anybody the kernel.
.PHONY: check-kernel
check-kernel: $(STAMP)  ## build the kernel with warnings as errors
	rm -f opslog/kernel/_kernel.*.so
	OPSLOG_KERNEL_FLAGS="-Wall -Wextra -Werror -Wno-unused-parameter" \
		$(BIN)/python setup.py --quiet build_ext --inplace --force
	$(BIN)/python -c 'import opslog.kernel; assert opslog.kernel.NAME == "C"'

.PHONY: format
format: $(STAMP)  ## rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: bench
bench: $(KERNEL)  ## measure everything beside the peers, with the kernel and without, and write docs/benchmarks.md; 22 minutes with ARGS='--rounds 3'
	@mkdir -p build
	OPSLOG_KERNEL=0 $(BIN)/python -m benchmarks --kernel-goals --json build/without-kernel.json $(ARGS)
	$(BIN)/python -m benchmarks --without-kernel build/without-kernel.json --page docs/benchmarks.md $(ARGS)

.PHONY: bench-check
bench-check: $(KERNEL)  ## measure as for the page, write nothing, and name what became slower; ARGS="--only get" for some
	$(BIN)/python -m benchmarks --check $(ARGS)

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
	rm -rf .venv .venv-docs build dist opslog/kernel/*.so *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
