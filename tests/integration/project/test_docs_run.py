"""What the pages of docs/ show is what happens."""

import re
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from duckdb_extensions import import_extension
from support.command_line import CommandLine
from support.docs_pages import DOCS, PAGES, blocks_of, code_of, run_python

from floe_dagster_iceberg import errors
from floe_dagster_iceberg.artifacts import CompiledArtifacts
from floe_dagster_iceberg.cli.app import main

DEPLOY = DOCS.with_name("deploy")
TESTS = Path(__file__).resolve().parents[2]
# Pages whose code needs more than a folder, and the tests that run it.
ELSEWHERE = {
    "catalogs.md": "integration/catalogs/test_catalogs_docs.py",
    "deployment.md": "integration/project/test_docs_run.py",
    "maintenance.md": "integration/maintenance/test_maintenance_dagster_docs.py",
    "partitions.md": "integration/io_managers/test_io_docs.py",
    "recipes/other-readers.md": "integration/project/test_docs_run.py",
    "scaling.md": "integration/spark/test_spark_docs.py",
    "telemetry.md": "integration/telemetry/test_telemetry_docs.py",
    "write-modes.md": "integration/io_managers/test_io_docs.py",
}
# By every name that they have.
ERRORS = {
    name: error
    for name, error in vars(errors).items()
    if isinstance(error, type) and issubclass(error, errors.FloeStorageError)
}


@pytest.mark.requirement("S2-SC-001")
@pytest.mark.parametrize("page", [page for page in PAGES if code_of(page, "python") and page not in ELSEWHERE])
def test_the_code_of_a_page_runs_from_top_to_bottom(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    run_python(page)


@pytest.mark.parametrize("page", ELSEWHERE)
def test_a_page_that_runs_elsewhere_has_code_and_a_test(page: str) -> None:
    assert code_of(page, "python")
    assert page in (TESTS / ELSEWHERE[page]).read_text()


def test_python_that_is_a_file_is_part_of_the_quickstart_which_has_a_test_of_its_own() -> None:
    files = [(page, block.title) for page in PAGES for block in blocks_of(page) if block.title is not None]

    assert [page for page, title in files if str(title).endswith(".py")] == ["quickstart.md"]


def test_no_code_block_escapes_because_of_the_way_it_is_written() -> None:
    fences = {page: len(re.findall(r"^ *```\w", (DOCS / page).read_text(), re.MULTILINE)) for page in PAGES}

    assert {page: len(blocks_of(page)) for page in PAGES} == fences


def test_yaml_blocks_are_valid() -> None:
    assert all(yaml.safe_load(code) for page in PAGES for code in code_of(page, "yaml"))


def test_duckdb_reads_our_tables_with_its_own_extension(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with duckdb.connect() as connection:
        # From a wheel. The page installs by name, which finds them installed and downloads nothing.
        for name in ("avro", "iceberg"):
            import_extension(name, con=connection)

    run_python("recipes/other-readers.md")


def test_the_sample_artifacts_build_the_code_location_of_the_deployment_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOE_ARTIFACTS", "set by the page itself")
    artifacts_file = DEPLOY / "artifacts.yaml"

    run_python("deployment.md", artifacts_file=str(artifacts_file))

    artifacts = CompiledArtifacts.from_json_file(artifacts_file)
    assert artifacts.resource_presets.keys() == {"default", "spark", "maintenance"}
    assert artifacts.storage is not None


def test_the_deployment_page_speaks_of_every_file_of_deploy() -> None:
    named = set(re.findall(r"\]\(\.\./deploy/([\w.-]+)\)", (DOCS / "deployment.md").read_text()))

    assert named == {file.name for file in DEPLOY.iterdir()} - {"Dockerfile.dockerignore"}


def test_the_secrets_that_the_deployment_page_makes_are_those_that_pods_ask_for() -> None:
    made = {
        name: set(re.findall(r"--from-literal=([\w-]+)=", line))
        for line in "".join(code_of("deployment.md", "sh")).splitlines()
        for name in re.findall(r"create secret generic ([\w-]+)", line)
    }
    values = yaml.safe_load((DEPLOY / "values.yaml").read_text())
    [deployment] = values["dagster-user-deployments"]["deployments"]
    asked = {secret["name"] for secret in deployment["envSecrets"]} | {values["global"]["postgresqlSecretName"]}
    asked |= {volume["secret"]["secretName"] for volume in deployment["volumes"] if "secret" in volume}

    assert made.keys() == asked
    references = re.findall(r'"secret_ref": "([\w-]+)"', (DEPLOY / "artifacts.yaml").read_text())
    assert {name.upper().replace("-", "_") for name in references} == made["minio"]
    assert made["polaris"] == {"client-secret"}


def commands(page: str) -> Iterator[list[str]]:
    """Arguments of each call of `floe-iceberg` that a page shows."""
    for block in code_of(page, "sh"):
        for line in block.splitlines():
            if line.startswith("floe-iceberg "):
                yield [argument.strip("'") for argument in line.split()[1:]]


@pytest.mark.slow
def test_every_command_of_the_page_on_the_command_line_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lake = CommandLine(tmp_path)
    lake.materialize_orders()
    lake.fill("bronze.events", files=6)
    lake.manager.create_tag(
        "shop.orders", "before-sale", snapshot_id=lake.table("shop.orders").snapshots()[0].snapshot_id
    )

    (tmp_path / "landing" / "region=EU").mkdir(parents=True)
    pq.write_table(pa.table({"id": [1]}), tmp_path / "landing" / "region=EU" / "part-0.parquet")

    shown = list(commands("command-line.md"))
    for arguments in shown:
        lake.run(*arguments)

    # These take the module of an asset or an environment; test_cli_adoption.py and test_cli_env.py have one.
    assert {arguments[0] for arguments in shown} == main.commands.keys() - {"init", "adopt", "delete-partition", "env"}
    assert all(f"| `{name}" in (DOCS / "command-line.md").read_text() for name in main.commands)


@pytest.mark.requirement("S4-errors")
def test_every_error_has_an_entry_in_troubleshooting() -> None:
    headings = set(re.findall(r"^### (\w+)$", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE))

    assert headings == {error.__name__ for error in ERRORS.values()}


def test_every_other_name_of_an_error_is_mentioned() -> None:
    page = (DOCS / "troubleshooting.md").read_text()
    others = {name for name, error in ERRORS.items() if name != error.__name__}

    assert others
    assert all(f"`{name}`" in page for name in others)
