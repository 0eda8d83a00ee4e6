# Every target sets up what it needs by itself: `make demo` and `make test` work in a fresh clone.
.DEFAULT_GOAL := help
.PHONY: help setup demo ui test test-slow e2e check format bench schemas rows lock clean

BIN := .venv/bin
# What ruff and mypy judge beyond the package itself.
PYTHON_CODE := floe_dagster_iceberg definitions.py examples scripts benchmarks
ARGS ?=

export DAGSTER_DISABLE_TELEMETRY ?= yes

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Make .venv with the locked packages, and fetch Spark's jars (seconds when it is done already)
	@scripts/setup.sh

demo: setup ## Run the example pipeline on a catalog of its own and report what happened
	@$(BIN)/python -m examples.demo

ui: setup ## Serve definitions.py in the Dagster UI
	@mkdir -p .dagster_home
	DAGSTER_HOME="$(CURDIR)/.dagster_home" $(BIN)/dagster dev -w workspace.yaml $(ARGS)

# One file stays on one worker, so that what a module shares is made once.
test: setup ## Run the tests, except those marked slow (ARGS="-k name" picks some)
	@$(BIN)/pytest -n 2 --dist loadfile -m "not slow and not e2e" $(ARGS)

test-slow: setup ## Run the fault and load suites
	@$(BIN)/pytest -m "slow and not e2e" --durations=10 $(ARGS)

e2e: setup ## Drive the demo in the Dagster UI with Chromium, and take the README's screenshots
	@$(BIN)/pytest tests/e2e -m e2e $(ARGS)

check: setup ## Judge style, types, layers, changelog and schemas; changes nothing
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy $(PYTHON_CODE)
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python scripts/check_changelog.py
	@$(BIN)/python scripts/export_schemas.py --check

format: setup ## Format the code and mend what ruff can mend
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: setup ## Run the benchmarks into benchmarks/results.md (ONLY=name picks one, ARGS=--quick tries them out)
	@$(BIN)/python -m benchmarks $(ONLY) $(ARGS)

schemas: setup ## Write the JSON Schema of every model to docs/schemas/
	@$(BIN)/python scripts/export_schemas.py

rows: setup ## List the requirement rows that no test proves, and drop the proven ones from the open list
	@$(BIN)/python scripts/requirement_rows.py --prune

# Versions already in the file are kept unless ARGS=--upgrade; docs/decisions/0001 says why not uv.lock.
lock: setup ## Bring requirements.lock up to date with pyproject.toml (ARGS=--upgrade takes the newest versions)
	@$(BIN)/uv pip compile pyproject.toml --group dev --extra connect --extra pandas --extra polars --extra postgres \
		--universal --python-version 3.11 --generate-hashes --no-header --quiet -o requirements.lock $(ARGS)

clean: ## Remove caches, builds and what the demo and the UI wrote; .venv stays
	@rm -rf .floe .dagster_home dist build spark-warehouse derby.log metastore_db
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
