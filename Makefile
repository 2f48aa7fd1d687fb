# Two commands: `make demo` (a quick sweep, ending in an HTML report) and `make test`.
# PYTHON picks the interpreter that .venv is made with; it must be 3.11 or newer.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint types format browser notebooks check clean

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' $(if $(LOCKED),--constraint requirements-ci.txt)
	@touch $@

demo: $(STAMP)
	$(BIN)/loadgen sweep --quick

test: $(STAMP)
	$(BIN)/python -m pytest -m 'not browser and not notebook' $(PYTEST)

browser: $(STAMP)
	$(BIN)/python -m pytest -m browser $(PYTEST)

notebooks: $(STAMP)
	$(BIN)/python -m pytest -m notebook $(PYTEST)

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
