# What a developer does with this tree. `make` alone lists it.
#
# Everything is installed into .venv and .cache; the machine needs Python 3.11 or later with its
# headers and venv, a C compiler and make.

PYTHON ?= python3
# Options for pytest, for instance: make test ARGS='-k contract'
ARGS ?=

BIN := .venv/bin
CEPH := radosgw ceph-mon ceph-osd ceph-common
CORE := setup.py pyproject.toml $(wildcard buquet/_core/*.py buquet/_core/*.pxd)

# The folder `drivers` in the working directory must never be imported instead of buquet.drivers.
export PYTHONSAFEPATH = 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.DELETE_ON_ERROR:
.PHONY: help demo test test-ceph matrix lint types format bench profile cov wheel localstack ceph clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/core ## run the main job on the embedded store: 1,000 tasks, a worker killed, none lost
	$(BIN)/python -m buquet.cli.demo

test: .venv/core .venv/test .cache/localstack/installed ## run all tests, on real S3 servers too
	$(BIN)/python -m pytest $(ARGS)

test-ceph: ceph .venv/core .venv/test ## run the contract suite, the probe and a queue on Ceph
	$(BIN)/python -m pytest tests/on_ceph.py $(ARGS)

matrix: .venv/core .venv/test .cache/localstack/installed ## print what each S3 server does, for docs/stores.md
	@PYTHONPATH=tests $(BIN)/python tests/matrix.py $(ARGS)

lint: .venv/core .venv/lint ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PATH="$(CURDIR)/$(BIN):$$PATH" cython-lint buquet/_core

types: .venv/core .venv/lint ## check types
	$(BIN)/mypy

format: .venv/core .venv/lint ## mend what can be mended of style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/core .venv/test ## measure the core, the client, a worker and its requests: one table, and JSON
	PYTHONPATH=bench:tests $(BIN)/python bench/table.py --json .benchmarks/buquet.json $(ARGS)

profile: .venv/core .venv/test ## show where the CPU time of a task goes, by layer (ARGS='--functions 20')
	PYTHONPATH=bench $(BIN)/python bench/layers.py $(ARGS)

cov: .venv/core .venv/test .cache/localstack/installed ## run all tests and show the lines that none reached
	$(BIN)/coverage run --branch --source=buquet,drivers -m pytest $(ARGS)
	$(BIN)/coverage report --show-missing --skip-covered

wheel: .venv/test ## build the sdist and the wheel into dist/
	$(BIN)/python -m build

localstack: .cache/localstack/installed ## install LocalStack for the tests

ceph: ## install Ceph from the packages of Debian or Ubuntu, as root
	@for tool in radosgw ceph-mon ceph-osd ceph; do command -v $$tool >/dev/null || missing=yes; done; \
	if [ "$$missing" ] && { [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; }; then \
		echo 'Ceph is missing, and this can only install it as root and with apt-get: install $(CEPH)' >&2; exit 1; \
	elif [ "$$missing" ]; then \
		apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $(CEPH); \
	fi

clean: ## remove everything that make made
	rm -rf .venv .cache build dist ./*.egg-info .*_cache .benchmarks .coverage .hypothesis
	rm -f buquet/_core/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- what the targets stand on; a file marks what is done ------------------------------------

# Dependency groups need pip 25.1.
define make-venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo '$(PYTHON) is older than Python 3.11: say make PYTHON=...' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { echo '$(PYTHON) has no venv (on Debian: apt install python3-venv)' >&2; exit 1; }
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	touch $@
endef

.venv/pip:
	$(make-venv)

.cache/localstack/pip:
	$(make-venv)

.venv/core: .venv/pip $(CORE)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

.venv/test .venv/lint: .venv/%: .venv/pip pyproject.toml
	$(BIN)/python -m pip install --quiet --group $*
	touch $@

.cache/localstack/installed: .cache/localstack/pip pyproject.toml
	.cache/localstack/bin/python -m pip install --quiet --group localstack
	touch $@

# --- the simulation ----------------------------------------------------------------------------

# Which seeds to run: make sim SEEDS=1-1000, or one that failed: make sim SEEDS=17
SEEDS ?= 1-300
SIMULATION := PYTHONPATH=tests $(BIN)/python -m simulation

.PHONY: sim sim-mutants

sim: .venv/core ## run the simulation: SEEDS=1-300, all faults, and the table of what they befell
	$(SIMULATION) --seeds $(SEEDS) $(if $(filter 1-300,$(SEEDS)),--table)

sim-mutants: .venv/core ## plant faults in the package: the simulation must find each
	$(SIMULATION) --mutants

# --- chaos with real processes -------------------------------------------------------------------

.PHONY: chaos

chaos: .venv/core .venv/test ## kill, pause and stop workers and their server amid 2,000 tasks: none is lost (ARGS='--seed 7')
	PYTHONPATH=tests $(BIN)/python -m chaos $(ARGS)
