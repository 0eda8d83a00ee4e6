"""What holds for every model and enum."""

import pickle
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import pytest
from pydantic import BaseModel, ValidationError
from pyiceberg.expressions import EqualTo

from floe_dagster_iceberg import models as m

TABLE = m.TableIdentifier(namespace="bronze", name="events")
NOW = datetime(2024, 1, 2, tzinfo=UTC)
ID = m.SchemaField(field_id=1, name="id", field_type=m.FieldType.LONG, required=True)
DAY = m.PartitionField(source_field_id=2, partition_field_id=1000, name="ts_day", transform=m.PartitionTransform.DAY)
TAGS = m.ListOf(element_id=4, element=m.DecimalOf(precision=9, scale=2))
SCHEMA = m.TableSchema(
    fields=[
        ID,
        m.SchemaField(field_id=2, name="ts", field_type=m.FieldType.TIMESTAMPTZ),
        m.SchemaField(field_id=3, name="tags", field_type=TAGS),
    ]
)
PLAN = m.MaintenancePlan(
    table=TABLE,
    operation=m.MaintenanceOperation.COMPACTION,
    engine=m.MaintenanceEngine.PYICEBERG,
    reason=m.PlanReason.RECOMMENDED,
    files=["a", "b"],
)
HEALTH = m.TableHealth(table=TABLE, tier=m.HealthTier.SUMMARY, measured_at=NOW)
EXAMPLES: list[BaseModel] = [
    TABLE,
    m.Cursor(table_uuid="8e1f", snapshot_id=42),
    ID,
    DAY,
    TAGS,
    SCHEMA,
    PLAN,
    HEALTH,
    m.DecimalOf(precision=9),
    m.FixedOf(length=16),
    m.StructOf(fields=[ID]),
    m.MapOf(key_id=5, key=m.FieldType.STRING, value_id=6, value=m.StructOf(fields=[ID])),
    m.PartitionSpec(fields=[DAY]),
    m.TableConfig(
        namespace="bronze", table_name="events", table_schema=SCHEMA, partition_spec=m.PartitionSpec(fields=[DAY])
    ),
    m.SchemaChange(change_type=m.SchemaChangeType.ADD_COLUMN, column_name="tags", new_type=TAGS),
    m.SchemaEvolution(changes=[m.SchemaChange(change_type=m.SchemaChangeType.DELETE_COLUMN, column_name="id")]),
    m.WriteConfig(mode=m.WriteMode.OVERWRITE, overwrite_filter=EqualTo("id", 1)),
    m.SnapshotInfo(snapshot_id=1, timestamp_ms=0, operation=m.OperationType.APPEND, summary={"added-records": "3"}),
    m.SnapshotWriter(engine="spark", version="4.1.4", application="app-1"),
    m.TableState(table_uuid="3f1c", snapshot_id=1, sequence_number=1, data_version="1", last_updated=NOW),
    m.TableObservation(table=TABLE, state=m.TableState(table_uuid="3f1c", data_version="3f1c"), rows_changed=True),
    m.CompactionStrategy(strategy_type=m.CompactionStrategyType.SORT, sort_columns=["id"]),
    m.IcebergTableManagerConfig(),
    m.IcebergIOManagerConfig(),
    m.RetryConfig(),
    m.CompactionPolicy(),
    m.ExpiryPolicy(),
    m.RetentionPolicy(column="ts"),
    m.OrphanPolicy(overrides=[m.Guardrail.ORPHAN_SHARE], max_share=0.5),
    m.ManifestPolicy(),
    m.Threshold(warn=1, error=2),
    m.HealthThresholds(),
    m.MaintenanceBudget(max_duration=timedelta(hours=1)),
    m.MaintenancePolicy(tables=["bronze.*"]),
    m.FileSizeBin(upper_bytes=1024, files=1, total_bytes=10),
    m.MaintenanceResult(
        table=TABLE,
        operation=m.MaintenanceOperation.COMPACTION,
        engine=m.MaintenanceEngine.SPARK,
        status=m.MaintenanceStatus.DONE,
        started_at=NOW,
        plan=PLAN,
        before=HEALTH,
    ),
]
PUBLIC = [getattr(m, name) for name in m.__all__]
each_model = pytest.mark.parametrize("model", EXAMPLES, ids=lambda model: type(model).__name__)


def test_every_public_model_has_an_example_here() -> None:
    public = {each for each in PUBLIC if isinstance(each, type) and issubclass(each, BaseModel)}

    assert public == {type(model) for model in EXAMPLES}


@each_model
def test_a_model_cannot_be_changed(model: BaseModel) -> None:
    field = next(iter(type(model).model_fields))

    with pytest.raises(ValidationError, match="frozen"):
        setattr(model, field, getattr(model, field))


@each_model
def test_an_unknown_argument_is_refused(model: BaseModel) -> None:
    with pytest.raises(ValidationError, match="surplus"):
        type(model).model_validate({"surplus": 1})


@pytest.mark.requirement("S2-FR-045")
@each_model
def test_a_model_survives_json_and_pickle(model: BaseModel) -> None:
    assert type(model).model_validate_json(model.model_dump_json()) == model
    assert pickle.loads(pickle.dumps(model)) == model  # noqa: S301


@each_model
def test_every_field_and_every_method_is_described(model: BaseModel) -> None:
    own = {name: value for name, value in vars(type(model)).items() if not name.startswith(("_", "model_"))}

    assert not [name for name, field in type(model).model_fields.items() if not field.description]
    assert not [name for name, value in own.items() if isinstance(value, property | classmethod) and not value.__doc__]
    assert not [name for name, value in own.items() if callable(value) and not value.__doc__]


def test_sequences_are_kept_as_tuples_so_that_models_can_be_hashed() -> None:
    columns = ["id"]
    config = m.CompactionStrategy(strategy_type=m.CompactionStrategyType.SORT, sort_columns=columns)
    columns.append("ts")

    assert config.sort_columns == ("id",)
    assert hash(SCHEMA) == hash(SCHEMA.model_copy())


@pytest.mark.requirement("S1-T007")
@pytest.mark.parametrize(
    ("enum", "values"),
    [
        (m.PartitionTransform, "identity year month day hour bucket truncate"),
        (m.WriteMode, "append overwrite upsert"),
        (m.CommitStrategy, "fast_append merge_commit"),
        (m.OperationType, "append overwrite delete replace"),
        (m.CompactionStrategyType, "bin_pack sort z_order"),
        (m.MaintenanceEngine, "auto pyiceberg spark"),
        (
            m.FieldType,
            "boolean int long float double decimal date time timestamp timestamptz string uuid fixed binary",
        ),
        (
            m.SchemaChangeType,
            "add_column rename_column widen_type make_optional make_required delete_column update_doc",
        ),
    ],
)
def test_an_enum_has_exactly_these_values(enum: type[StrEnum], values: str) -> None:
    assert [member.value for member in enum] == values.split()
    assert [member.name for member in enum] == values.upper().split()


def test_public_names_are_sorted_and_unique() -> None:
    assert list(m.__all__) == sorted(set(m.__all__), key=_as_ruff_sorts)


def _as_ruff_sorts(name: str) -> tuple[bool, str]:
    return not name.isupper(), name


def test_models_import_no_engine() -> None:
    code = (
        "import sys, floe_dagster_iceberg.models\n"
        "print(*{'pyarrow', 'pyspark', 'dagster', 'pandas', 'polars', 'pyiceberg.table'} & sys.modules.keys())"
    )

    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "\n"
