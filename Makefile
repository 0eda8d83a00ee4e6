# Every target sets up what it needs: `make demo` and `make test` work in a fresh clone.
.DEFAULT_GOAL := help
.PHONY: help setup demo ui services test test-lakes test-slow e2e check format docs docs-serve build bench schemas rows \
	lock clean

BIN := .venv/bin
# What mypy checks.
PYTHON_CODE := floe_dagster_iceberg definitions.py examples scripts benchmarks
ARGS ?=
# The lakes that test-lakes runs on, one after the other.
LAKES ?= postgres rest gateway
# With LAKE=rest or LAKE=postgres, a command runs on temporary servers, which are removed with their data afterwards.
ON_LAKE = $(if $(LAKE),PYTHONPATH=tests:. $(BIN)/python -m support.on_lake $(LAKE))

export DAGSTER_DISABLE_TELEMETRY ?= yes

help: ## List all targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Create .venv with the locked packages and download Spark's jars (takes seconds if up to date)
	@scripts/setup.sh

demo: setup ## Run the example pipeline and print a report (LAKE=rest: on a REST catalog, S3 and PostgreSQL)
	@$(ON_LAKE) $(BIN)/python -m examples.demo $(ARGS)

ui: setup ## Serve definitions.py in the Dagster UI (LAKE=rest: on temporary servers, after running the demo there)
ifeq ($(LAKE),)
	@mkdir -p .dagster_home
	DAGSTER_HOME="$(CURDIR)/.dagster_home" $(BIN)/dagster dev -w workspace.yaml $(ARGS)
else
	@$(ON_LAKE) sh -c '$(BIN)/python -m examples.demo && exec $(BIN)/dagster dev -w workspace.yaml $(ARGS)'
endif

services: setup ## Start PostgreSQL, S3, a REST catalog, a Polaris-like gateway and Keycloak, until Ctrl-C
	@PYTHONPATH=tests $(BIN)/python -m support.servers

# A file runs on one worker, so that its module-scoped fixtures are created once. Four workers for two cores, because
# many tests wait for servers and other processes.
test: setup ## Run the tests, except slow ones (ARGS="-k name" selects some)
	@$(BIN)/pytest -n 4 --dist loadfile -m "not slow and not e2e" $(ARGS)

test-lakes: setup ## Run the tests that depend on catalog or storage on PostgreSQL, REST and S3 (LAKES=rest selects one)
	@for lake in $(LAKES); do \
		$(BIN)/pytest -n 2 --dist loadfile -m "lakes and not slow" --lake=$$lake \
			tests/behaviour tests/integration/manager $(ARGS) || exit 1; done

test-slow: setup ## Run the fault and load tests
	@$(BIN)/pytest -n 2 --dist loadfile -m "slow and not e2e" --durations=10 $(ARGS)

e2e: setup ## Test the demo in the Dagster UI with Chromium, and take the README's screenshots
	@$(BIN)/pytest tests/e2e -m e2e $(ARGS)

check: setup ## Check style, types, layers, changelog and schemas without changing anything
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy $(PYTHON_CODE)
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python scripts/check_changelog.py
	@$(BIN)/python scripts/export_schemas.py --check

format: setup ## Format the code and apply ruff's fixes
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: setup ## Build the documentation site into build/site; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet $(ARGS)

docs-serve: setup ## Serve the documentation site, and rebuild it on changes
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve $(ARGS)

# The build backend is a locked package, too, so that nothing else is downloaded.
build: setup ## Build the wheel into dist/
	@$(BIN)/uv build --wheel --clear --no-build-isolation --python $(BIN)/python --out-dir dist --quiet $(ARGS)
	@ls dist/*.whl

bench: setup ## Run the benchmarks and write benchmarks/results.md (ONLY=name selects one, ARGS=--quick is a smoke test)
	@PYTHONPATH=tests:. $(BIN)/python -m benchmarks $(ONLY) $(ARGS)

schemas: setup ## Write the JSON Schema of every model to docs/schemas/
	@$(BIN)/python scripts/export_schemas.py

rows: setup ## List the requirements that no test proves, and remove proven ones from the open list
	@$(BIN)/python scripts/requirement_rows.py --prune

# Versions already in the file are kept unless ARGS=--upgrade. Why not uv.lock: docs/decisions/0001.
lock: setup ## Update requirements.lock from pyproject.toml (ARGS=--upgrade takes the newest versions)
	@$(BIN)/uv pip compile pyproject.toml --group dev --group docs --extra connect --extra pandas --extra polars --extra postgres --extra s3 \
		--universal --python-version 3.11 --generate-hashes --no-header --quiet -o requirements.lock $(ARGS)

clean: ## Remove caches, builds and the data of demo and UI; keeps .venv
	@rm -rf .floe .dagster_home dist build spark-warehouse derby.log metastore_db
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
