"""What the reference pages of the documentation list: Markdown from the models, made when the site is built."""

import enum
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import click
from dagster import Resolver
from pydantic import AwareDatetime, BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pyiceberg.expressions import BooleanExpression
from pyiceberg.types import DecimalType

from floe_dagster_iceberg import models, resources
from floe_dagster_iceberg.artifacts import model as artifacts, shapes, telemetry
from floe_dagster_iceberg.asset_settings import AssetSettings, InputSettings
from floe_dagster_iceberg.cli.app import main as command_line
from floe_dagster_iceberg.components import (
    IcebergLakehouseComponent,
    IcebergMaintenanceComponent,
    IcebergSparkSqlComponent,
)
from floe_dagster_iceberg.components.fields import CheckedField
from floe_dagster_iceberg.components.spark_sql import SelectCheck
from floe_dagster_iceberg.io_managers.managers import IcebergIOManager
from floe_dagster_iceberg.kubernetes import ExecutorSettings, ResourcePreset, Toleration
from floe_dagster_iceberg.maintenance import policy, settings
from floe_dagster_iceberg.models import partitioning
from floe_dagster_iceberg.models.quantities import format_bytes, format_duration
from floe_dagster_iceberg.plugins import registry
from floe_dagster_iceberg.secrets import NamedSecret, SecretReference
from floe_dagster_iceberg.table.filter.filter_literals import EXAMPLES
from floe_dagster_iceberg.table.schema.partition_spec import PartitionLayout
from scripts import docs_keys as keys

ROOT: Final = Path(__file__).resolve().parent.parent
_NOTHING: Final[tuple[object, ...]] = (None, (), [], {}, "", PydanticUndefined)
_TYPES: Final[dict[Any, str]] = {
    Any: "any",
    bool: "boolean",
    date: "date",
    datetime: "timestamp",
    dict: "mapping",
    float: "number",
    int: "integer",
    str: "text",
    timedelta: "duration",
    AwareDatetime: "timestamp with an offset",
    BooleanExpression: "PyIceberg expression",
    NamedSecret: "secret",
    PartitionLayout: "list of text",
    SecretReference: "secret",
    SecretStr: "secret",
    partitioning.PartitionSpec: "`PartitionSpec`",
}
_PLACE: Final = re.compile(r"<!-- generated: (?P<name>[\w ]+) -->")
_LIMITS: Final = {"ge": "at least {}", "gt": "more than {}", "le": "at most {}", "lt": "less than {}"}


def fill(markdown: str) -> str:
    """Put the generated parts where a page has a comment such as `<!-- generated: policy -->`.

    Raises:
        KeyError: There is no such part.
    """
    return _PLACE.sub(lambda place: PARTS[place["name"]](), markdown)


def _policy_sections() -> Iterator[str]:
    general = [name for name in models.MaintenancePolicy.model_fields if name in policy.policy_fields()]
    yield "## General\n" + _policy_table("", models.MaintenancePolicy, general)
    for name, info in models.MaintenancePolicy.model_fields.items():
        if name not in general and isinstance(info.annotation, type):
            yield f"## {name}\n{info.description}\n\n" + _policy_table(f"{name}.", info.annotation)


def _policy_table(prefix: str, model: type[BaseModel], names: Iterable[str] | None = None) -> str:
    rows = [_field_row(name, model.model_fields[name], shown=f"{prefix}{name}") for name in names or model.model_fields]
    return _table(("field", "type", "default", "description"), rows)


def _property_rows() -> Iterator[Sequence[str]]:
    return ((f"`{key}`", f"`{field}`") for field, key in policy.table_properties().items())


def _guardrail_rows() -> Iterator[Sequence[str]]:
    sections = {name: info.annotation for name, info in models.MaintenancePolicy.model_fields.items()}
    for guardrail in models.Guardrail:
        holders = [name for name, kind in sections.items() if guardrail in getattr(kind, "guardrails", ())]
        yield f"`{guardrail}`", ", ".join(f"`{name}`" for name in holders) or "none: it cannot be overridden"


def _schedule_rows() -> Iterator[Sequence[str]]:
    return ((f"`{name}`", f"`{cron}`") for name, cron in settings.DEFAULT_CRONS.items())


def _run_config_rows() -> Iterator[Sequence[str]]:
    seen: set[str] = set()
    for model in (settings.MaintenanceConfig, settings.HealthConfig, settings.OrphanConfig):
        for name, info in model.model_fields.items():
            if name not in seen:
                seen.add(name)
                yield _field_row(name, info)


def _literal_rows() -> Iterator[Sequence[str]]:
    for kind, literal in EXAMPLES.items():
        yield f"`{'decimal' if kind is DecimalType else kind()}`", f"`{literal}`"


def _plugin_sections(kind: registry.Kind) -> str:
    return _paragraphs(
        f"### {name}\n{plugin.description}\n\n{_model_table(plugin.config_type, head='key')}"
        for name, plugin in registry.BUILT_INS[kind].items()
    )


def _command_sections() -> Iterator[str]:
    context = click.Context(command_line, info_name="floe-iceberg")
    for name, command in command_line.commands.items():
        of_group = command.commands if isinstance(command, click.Group) else {}
        yield from (_command_section(f"{name} {each}", own, context) for each, own in of_group.items())
        if not of_group:
            yield _command_section(name, command, context)


def _command_section(name: str, command: click.Command, parent: click.Context) -> str:
    context = click.Context(command, info_name=name, parent=parent)
    rows = []
    for parameter in command.get_params(context):
        if isinstance(parameter, click.Option):
            flags = ", ".join(f"`{flag}`" for flag in (*parameter.opts, *parameter.secondary_opts))
            choices = parameter.type.choices if isinstance(parameter.type, click.Choice) else ()
            rows.append((flags, ", ".join(f"`{choice}`" for choice in choices), parameter.help or ""))
    usage = " ".join(["floe-iceberg", name, *command.collect_usage_pieces(context)])
    options = _table(("option", "values", "description"), rows)
    return f"## {name}\n```text\n{usage}\n```\n\n{_help_text(command)}\n\n{options}"


def _help_text(command: click.Command) -> str:
    return _paragraphs(" ".join(paragraph.split()) for paragraph in (command.help or "").split("\n\n"))


def _schemas() -> str:
    names = sorted(path.stem for path in (ROOT / "docs" / "schemas").glob("*.json"))
    return "\n".join(f"- [{name}](../schemas/{name}.json)" for name in names)


def _model_table(model: type[BaseModel], *, head: str = "setting") -> str:
    fields = {info.alias or name: (name, info) for name, info in model.model_fields.items()}
    rows = [_field_row(name, info, shown=key) for key, (name, info) in fields.items()]
    return _table((head, "type", "default", "description"), rows)


def _field_row(name: str, info: FieldInfo, *, shown: str | None = None) -> Sequence[str]:
    # Dagster drops the description of a nested resource.
    description = info.description or keys.RESOURCES.get(name, "")
    return [f"`{shown or name}`", _type_text(name, info), _default_text(name, info), description]


def _type_text(name: str, info: FieldInfo) -> str:
    kind = next((each.kind for each in info.metadata if isinstance(each, CheckedField)), info.annotation)
    text = "size" if name.endswith("_bytes") and kind is not bool else _name_of(kind)
    if any(isinstance(each, Resolver) for each in info.metadata) and kind is Any:
        text = "text"
    limits = [
        shape.format(_value_text(name, limit))
        for each in info.metadata
        for attribute, shape in _LIMITS.items()
        if (limit := getattr(each, attribute, None)) is not None and limit != timedelta(0)
    ]
    return ", ".join([text, *limits])


def _name_of(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _name_of(arguments[0])
    if origin is Literal:
        return _codes(arguments)
    if origin in (Union, types.UnionType):
        # Dagster adds its own type to the type of a nested resource.
        named = [each for each in arguments if getattr(each, "__name__", "") not in ("NoneType", "PartialResource")]
        return " or ".join(dict.fromkeys(map(_name_of, named)))
    if origin in (list, tuple, Sequence):
        return f"list of {_name_of(arguments[0])}"
    return _name_of_class(kind)


def _name_of_class(kind: Any) -> str:
    if kind is models.Guardrail:
        return "[guardrails](#guardrails)"
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _codes(member.value for member in kind)
    is_resource = isinstance(kind, type) and kind.__name__ in vars(resources)
    return _TYPES.get(kind) or (f"`{kind.__name__}`" if is_resource else "mapping")


def _default_text(name: str, info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=False)
    if isinstance(value, models.Threshold):
        return f"`warn` {_value_text(name, value.warn)}, `error` {_value_text(name, value.error)}"
    return "" if value in _NOTHING or isinstance(value, BaseModel) else _value_text(name, value)


def _value_text(name: str, value: Any) -> str:
    match value:
        case timedelta():
            text = format_duration(value)
        case int() | float() if not isinstance(value, bool):
            is_size = name.endswith("_bytes")
            text = format_bytes(value).replace(".0 ", " ") if is_size else f"{value:,}".removesuffix(".0")
        case tuple():
            text = _codes(value)
        case _:
            text = _codes([str(value).lower() if isinstance(value, bool) else getattr(value, "value", value)])
    return text


def _codes(values: Iterable[object]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def _paragraphs(parts: Iterable[str]) -> str:
    return "\n\n".join(parts)


def _pairs_table(head: str, pairs: Mapping[str, str]) -> str:
    return _table((head, "description"), [(f"`{key}`", text) for key, text in pairs.items()])


def _table(head: Sequence[str], rows: Iterable[Sequence[str | None]]) -> str:
    """A Markdown table, without columns that are empty."""
    body = [list(row) for row in rows]
    kept = [number for number in range(len(head)) if any(row[number] for row in body)]
    lines = [[head[number] for number in kept], ["---"] * len(kept)]
    lines += [[_cell(row[number]) for number in kept] for row in body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def _of_model(model: type[BaseModel], head: str = "key") -> Callable[[], str]:
    return lambda: _model_table(model, head=head)


def _of_pairs(head: str, pairs: Mapping[str, str]) -> Callable[[], str]:
    return lambda: _pairs_table(head, pairs)


PARTS: Final[Mapping[str, Callable[[], str]]] = {
    "IcebergIOManager": _of_model(IcebergIOManager, "setting"),
    "IcebergIOManagerConfig": _of_model(models.IcebergIOManagerConfig, "setting"),
    "IcebergLakehouseComponent": _of_model(IcebergLakehouseComponent, "field"),
    "IcebergMaintenanceComponent": _of_model(IcebergMaintenanceComponent, "field"),
    "IcebergResource": _of_model(resources.IcebergResource, "setting"),
    "IcebergSparkSqlComponent": _of_model(IcebergSparkSqlComponent, "field"),
    "SelectCheck": _of_model(SelectCheck, "field"),
    "IcebergSparkResource": _of_model(resources.IcebergSparkResource, "setting"),
    "TableManagerSettings": _of_model(models.IcebergTableManagerConfig, "setting"),
    "artifacts": _of_model(shapes.FloeShape),
    "asset settings": _of_model(AssetSettings),
    "catalogs": lambda: _plugin_sections("catalog"),
    "command line": lambda: _help_text(command_line),
    "commands": lambda: _paragraphs(_command_sections()),
    "compute": _of_model(artifacts.SparkSettings),
    "default schedules": lambda: _table(("section", "default schedule"), _schedule_rows()),
    "audit metadata": _of_pairs("key", keys.AUDIT),
    "environment metadata": _of_pairs("key", keys.ENVIRONMENT_JOBS),
    "environment": _of_pairs("variable", keys.ENVIRONMENT),
    "environment of other projects": _of_pairs("variable", keys.FOREIGN_ENVIRONMENT),
    "executor": _of_model(ExecutorSettings),
    "failure metadata": _of_pairs("key", keys.FAILURE),
    "filter literals": lambda: _table(("type", "literal"), _literal_rows()),
    "governance": _of_model(shapes.GovernanceSection),
    "guardrails": lambda: _table(("guardrail", "sections"), _guardrail_rows()),
    "health metadata": _of_pairs("key", keys.HEALTH),
    "input settings": _of_model(InputSettings),
    "maintenance metadata": _of_pairs("key", keys.MAINTENANCE),
    "materialization metadata": _of_pairs("key", keys.MATERIALIZATION),
    "metadata": _of_model(shapes.MetadataSection),
    "observation metadata": _of_pairs("key", keys.OBSERVATION),
    "orchestrator": _of_pairs("key", keys.ORCHESTRATOR),
    "plugin": _of_model(shapes.PluginSection),
    "plugins": _of_model(shapes.PluginsSection),
    "policy": lambda: _paragraphs(_policy_sections()),
    "policy properties": lambda: _table(("table property", "field"), _property_rows()),
    "resource preset": _of_model(ResourcePreset),
    "run config": lambda: _table(("key", "type", "default", "description"), _run_config_rows()),
    "schedules": _of_model(settings.ScheduleSettings),
    "schemas": _schemas,
    "sensor": _of_model(settings.SensorSettings),
    "snapshot properties": _of_pairs("property", keys.SNAPSHOT),
    "storages": lambda: _plugin_sections("storage"),
    "table properties": _of_pairs("property", keys.TABLE),
    "tags": _of_pairs("tag", keys.TAGS),
    "telemetry": _of_model(telemetry.TelemetrySection),
    "telemetry authentication": _of_model(telemetry.Authentication),
    "telemetry logging": _of_model(telemetry.LoggingSettings),
    "toleration": _of_model(Toleration),
}
"""The parts of pages, by the name that a page calls them."""
