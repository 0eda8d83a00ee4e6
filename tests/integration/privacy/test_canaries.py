"""No data value is in what runs leave behind: Dagster's files, logs, spans, output. On both engines, right or wrong."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.csv
import pytest
from dagster import AssetIn, AssetsDefinition, DagsterInstance, StaticPartitionsDefinition, asset
from opentelemetry import trace
from support.canaries import Canary, CapturedOutput, capture_output, provider_into
from support.canary_frames import cast_in_spark, failing_worker, raised_by_spark
from support.place import LocalPlace
from support.warehouse import WAREHOUSES, Warehouse

from floe_dagster_iceberg.asset_settings import iceberg_settings

pytestmark = pytest.mark.requirement("S2-FR-044")
REGIONS = StaticPartitionsDefinition(["eu"])


@dataclass
class Scene:
    """A warehouse with a table `people`, and the folder of a real Dagster instance."""

    warehouse: Warehouse
    home: Path
    people: Canary

    def run(self, asset: AssetsDefinition) -> bool:
        """Materialize an asset, which may read the table."""
        people = [] if asset.key.path == ["people"] else [returning("people", None)]
        key = "eu" if asset.partitions_def is not None else None
        return self.warehouse.run([*people, asset], key, selection=[asset], raise_on_error=False).success


@pytest.fixture(scope="module", params=WAREHOUSES)
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    home, lake = tmp_path_factory.mktemp("dagster"), tmp_path_factory.mktemp("lake")
    with DagsterInstance.local_temp(str(home)) as instance:
        warehouse = WAREHOUSES[request.param].open(LocalPlace.below(lake), instance)
        canary = Canary()
        rows = warehouse.frame({"id": [canary.number, 2], "name": [canary.word, "b"]})
        assert warehouse.run(returning("people", rows)).success
        yield Scene(warehouse, home, canary)


@pytest.fixture
def outputs(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Iterator[CapturedOutput]:
    with capture_output(scene.home) as outputs:
        monkeypatch.setattr(trace, "get_tracer", provider_into(outputs.spans).get_tracer)
        yield outputs


def returning(name: str, frame: Any, *, partitioned_by: str | None = None, **settings: Any) -> AssetsDefinition:
    where = {} if partitioned_by is None else {"partition_expr": partitioned_by}

    @asset(
        name=name,
        metadata={**where, **iceberg_settings(**settings)},
        partitions_def=None if partitioned_by is None else REGIONS,
    )
    def build() -> Any:
        return frame

    return build


def reading(scene: Scene, row_filter: str) -> AssetsDefinition:
    def report(people: Any) -> None:
        scene.warehouse.to_arrow(people)

    report.__annotations__ = {"people": scene.warehouse.frame_type, "return": None}
    return asset(ins={"people": AssetIn(metadata={"iceberg/row_filter": row_filter})})(report)


Case = Callable[[Scene, Canary], AssetsDefinition]


def rows(scene: Scene, canary: Canary, **columns: Any) -> Any:
    return scene.warehouse.frame({"id": [canary.number, 2], "name": [canary.word, "b"], **columns})


SUCCESSES: dict[str, Case] = {
    "first write": lambda s, c: returning("fresh", rows(s, c)),
    "overwrite": lambda s, c: returning("fresh", rows(s, c), write_mode="overwrite"),
    "upsert": lambda s, c: returning("fresh", rows(s, c), upsert_keys=["name"]),
    "new column": lambda s, c: returning("fresh", rows(s, c, note=[c.word, c.word])),
    "partition": lambda s, c: returning(
        "regional", s.warehouse.frame({"name": ["eu"], "note": [c.word]}), partitioned_by="name"
    ),
}
FAILURES: dict[str, Case] = {
    "row outside the partition": lambda s, c: returning("outside", rows(s, c), partitioned_by="name"),
    "repeated keys": lambda s, c: returning(
        "repeated", s.warehouse.frame({"name": [c.word, c.word]}), upsert_keys=["name"]
    ),
    "key that is NULL": lambda s, c: returning(
        "unknown", s.warehouse.frame({"id": [1, None], "name": [c.word, c.word]}), upsert_keys=["id"]
    ),
    "text in a column of numbers": lambda s, c: returning("people", s.warehouse.frame({"id": [c.word]})),
    "number in a column of text": lambda s, c: returning("people", s.warehouse.frame({"name": [c.number]})),
    "not a frame": lambda _, c: returning("nothing", [c.word]),
}
FAILURES_OF_ONE: dict[str, dict[str, Case]] = {
    "arrow": {
        "lazy polars": lambda _, c: returning(
            "lazy", pl.LazyFrame({"name": [c.word]}).select(pl.col("name").cast(pl.Int64))
        ),
        "stream of a file": lambda _, c: returning("stream", numbers_of_a_file(c)),
        "digits that are lost": lambda _, c: returning(
            "digits", pa.table({"at": pa.array([c.number * 1000 + 1], pa.timestamp("ns"))})
        ),
    },
    "spark": {
        "cast": lambda s, c: returning("casted", cast_in_spark(rows(s, c))),
        "error raised by a query": lambda s, c: returning("raised", raised_by_spark(rows(s, c))),
        "function in a worker": lambda s, c: returning("worker", failing_worker(rows(s, c))),
    },
}
FILTERS = {
    "right": "name = '{word}' and id = {number}",
    "unreadable": "name == = '{word}'",
    "of another type": "id = '{word}'",
    "by an unknown column": "nobody = '{word}'",
}


def numbers_of_a_file(canary: Canary) -> pa.RecordBatchReader:
    file = pa.py_buffer(b"id\n" + b"1\n" * 5000 + canary.word.encode() + b"\n")
    return pyarrow.csv.open_csv(pa.BufferReader(file), read_options=pyarrow.csv.ReadOptions(block_size=1000))


@pytest.mark.parametrize("case", SUCCESSES)
def test_a_write_reveals_no_value_of_its_rows(scene: Scene, outputs: CapturedOutput, case: str, capfd: Any) -> None:
    canary = Canary()

    assert scene.run(SUCCESSES[case](scene, canary))

    outputs.others["output"] = "".join(capfd.readouterr())
    assert outputs.places_with(canary) == []


@pytest.mark.parametrize("case", [*FAILURES, "of its own 1", "of its own 2", "of its own 3"])
def test_a_write_that_fails_reveals_no_value_of_its_rows(
    scene: Scene, outputs: CapturedOutput, case: str, capfd: Any
) -> None:
    canary, own = Canary(), list(FAILURES_OF_ONE[scene.warehouse.engine].values())
    build = FAILURES[case] if case in FAILURES else own[int(case[-1]) - 1]

    assert not scene.run(build(scene, canary))

    outputs.others["output"] = "".join(capfd.readouterr())
    assert '"status": "error"' in outputs.places()["spans"]
    assert outputs.places_with(canary) == []


@pytest.mark.parametrize("case", FILTERS)
def test_a_read_reveals_neither_the_literals_of_its_filter_nor_a_value_of_its_rows(
    scene: Scene, outputs: CapturedOutput, case: str, capfd: Any
) -> None:
    canary = Canary()
    row_filter = FILTERS[case].format(word=canary.word, number=canary.number)

    assert scene.run(reading(scene, row_filter)) is (case == "right")

    outputs.others["output"] = "".join(capfd.readouterr())
    # Dagster itself keeps what is written into a definition: there, and only there, the filter stands as it was given.
    outputs.overlook(row_filter)
    assert outputs.places_with(canary, scene.people) == []
