# The two commands of the README: `make demo` and `make test`. Everything else is a part of them.

UV := $(CURDIR)/.venv/bin/uv
PYTHON ?= python3
RUN := $(UV) run --frozen

.PHONY: demo test test-fast test-lab test-lab-all lint lab-down clean

# A virtual environment with the project's own uv; nothing is installed outside it.
$(UV):
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet "uv>=0.9"

.venv/.synced: $(UV) pyproject.toml uv.lock
	$(UV) sync --frozen --quiet
	touch $@

test: test-fast test-lab

test-fast: .venv/.synced
	$(RUN) pytest -q -n logical -m "not guest" tests

# What needs guests: the whole path first, the rest from snapshots, as far as the time allows.
test-lab: .venv/.synced
	$(RUN) pytest -s -v -m guest tests/guest

test-lab-all: .venv/.synced
	$(RUN) pytest -q -n logical -rP --show-capture=stdout -k killed --lab-all tests/test_whole_job.py
	$(RUN) pytest -s -v -m guest tests/guest --lab-all

demo: .venv/.synced
	$(RUN) python -m lab up --install
	$(RUN) pyinfra -y inventories/lab.py deploys/gpu_node.py
	$(RUN) pytest -q tests/validation --inventory inventories/lab.py --junitxml=runs/validation.xml
	$(RUN) python -m lab nodes

lint: .venv/.synced
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) mypy
	$(RUN) lint-imports

lab-down: .venv/.synced
	$(RUN) python -m lab down

clean: lab-down
	rm -rf .venv
