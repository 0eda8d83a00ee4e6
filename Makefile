# Every target sets up what it needs by itself: `make demo` and `make test` work in a fresh clone.
.DEFAULT_GOAL := help
.PHONY: help setup demo ui services test test-lakes test-slow e2e check format bench schemas rows lock clean

BIN := .venv/bin
# What ruff and mypy judge beyond the package itself.
PYTHON_CODE := floe_dagster_iceberg definitions.py examples scripts benchmarks
ARGS ?=
# The lakes of real servers that test-lakes runs on, one after the other.
LAKES ?= postgres rest gateway
# With LAKE=rest or LAKE=postgres, real servers around a command; they and their data go with it.
ON_LAKE = $(if $(LAKE),PYTHONPATH=tests:. $(BIN)/python -m support.on_lake $(LAKE))

export DAGSTER_DISABLE_TELEMETRY ?= yes

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Make .venv with the locked packages, and fetch Spark's jars (seconds when it is done already)
	@scripts/setup.sh

demo: setup ## Run the example pipeline and report what happened (LAKE=rest: on a REST catalog, S3 and PostgreSQL)
	@$(ON_LAKE) $(BIN)/python -m examples.demo $(ARGS)

ui: setup ## Serve definitions.py in the Dagster UI (LAKE=rest: on servers that the demo is run on first)
ifeq ($(LAKE),)
	@mkdir -p .dagster_home
	DAGSTER_HOME="$(CURDIR)/.dagster_home" $(BIN)/dagster dev -w workspace.yaml $(ARGS)
else
	@$(ON_LAKE) sh -c '$(BIN)/python -m examples.demo && exec $(BIN)/dagster dev -w workspace.yaml $(ARGS)'
endif

services: setup ## Start PostgreSQL, S3, a REST catalog, a gateway like Polaris and Keycloak, until Ctrl-C
	@PYTHONPATH=tests $(BIN)/python -m support.servers

# One file stays on one worker, so that what a module shares is made once.
test: setup ## Run the tests, except those marked slow (ARGS="-k name" picks some)
	@$(BIN)/pytest -n 2 --dist loadfile -m "not slow and not e2e" $(ARGS)

test-lakes: setup ## Run what a catalog or a store can change on PostgreSQL, REST and S3 (LAKES=rest picks one)
	@for lake in $(LAKES); do \
		$(BIN)/pytest -n 2 --dist loadfile -m "lakes and not slow" --lake=$$lake \
			tests/behaviour tests/integration/manager $(ARGS) || exit 1; done

test-slow: setup ## Run the fault and load suites
	@$(BIN)/pytest -n 2 --dist loadfile -m "slow and not e2e" --durations=10 $(ARGS)

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
	@$(BIN)/uv pip compile pyproject.toml --group dev --extra connect --extra pandas --extra polars --extra postgres --extra s3 \
		--universal --python-version 3.11 --generate-hashes --no-header --quiet -o requirements.lock $(ARGS)

clean: ## Remove caches, builds and what the demo and the UI wrote; .venv stays
	@rm -rf .floe .dagster_home dist build spark-warehouse derby.log metastore_db
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
