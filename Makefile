# Two commands: `make demo` (a quick sweep, ending in an HTML report) and `make test`.
# PYTHON picks the interpreter that .venv is made with; it must be 3.11 or newer.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= $(shell $(PYTHON) -c 'import os; print(min(os.cpu_count() + 1, 8))')
# status 5 says that PYTEST='-k ...' left none of these
pytest = $(BIN)/python -m pytest -m '$(1)' $(2) $(PYTEST) || test $$? = 5

.PHONY: demo test lint types format browser notebooks check clean

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' $(if $(LOCKED),--constraint requirements-ci.txt)
	@touch $@

demo: $(STAMP)
	$(BIN)/loadgen sweep --quick

# most tests wait for processes more than they compute: they run beside each other, a file's in order
test: $(STAMP)
	$(call pytest,not browser and not notebook and not alone,--numprocesses=$(JOBS) --dist=loadfile)
	$(call pytest,alone)

browser: $(STAMP)
	$(call pytest,browser)

notebooks: $(STAMP)
	$(call pytest,notebook)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: lint types test browser notebooks

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis
