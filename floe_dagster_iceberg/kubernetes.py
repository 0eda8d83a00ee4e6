"""Pod sizes and the executor, from the artifacts. Kubernetes libraries are only imported when needed.

A resource preset has a short form, floe's own, and a long one:

    "small": {"cpu": "500m", "memory": "1Gi"}
    "medium": {"cpu_request": "500m", "cpu_limit": "1", "memory_request": "1Gi", "memory_limit": "2Gi"}
    "large": {"requests": {"cpu": "2", "memory": "8Gi"}, "limits": {"memory": "8Gi"},
              "node_selector": {"pool": "batch"}, "tolerations": [{"key": "batch", "operator": "Exists"}]}

It becomes the tag `dagster-k8s/config`: on an op it sizes the step's pod, on a job the run's. The ops of
data assets are not changed; the executor gets the sizes of their steps. Settings that Kubernetes would reject
when a pod starts are rejected when the code location loads.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Annotated, Any, Final, Literal, Self

import dagster as dg
from pydantic import AliasChoices, BeforeValidator, Field, model_validator

from floe_dagster_iceberg.artifacts import CompiledArtifacts
from floe_dagster_iceberg.artifacts.shapes import raise_validation_error
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.maintenance.settings import MaintenanceSettings
from floe_dagster_iceberg.models import MaintenanceOperation
from floe_dagster_iceberg.models.base import FrozenModel

K8S_CONFIG_TAG: Final = "dagster-k8s/config"
PRESET_TAG: Final = "floe/resources"
_PRESETS_PATH: Final = "plugins.orchestrator.config.resource_presets"
_EXECUTOR_PATH: Final = "plugins.orchestrator.config.executor"
_DEFAULT_PRESET: Final = "default"
_MAINTENANCE_PRESET: Final = "maintenance"
_K8S_EXECUTOR: Final = "k8s_job_executor"
# The executor's setting for the pods of single steps.
_PER_STEP: Final = "per_step_k8s_config"
# 512m of these would be thousandths of a byte; 512Mi is meant.
_BYTES: Final = frozenset({"memory", "ephemeral-storage"})
_QUANTITY: Final = re.compile(r"\d+(\.\d+)?(m|k|[MGTPE]|[KMGTPE]i)?")


def _check_quantity(value: object) -> object:
    # JSON has whole CPUs as numbers, Kubernetes takes text.
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not _QUANTITY.fullmatch(text):
        raise ValueError("Input should be a Kubernetes quantity such as '500m' or '4Gi'")
    return text


Quantity = Annotated[str, BeforeValidator(_check_quantity)]


def _compare(one: str, other: str) -> Decimal:
    """Return the difference of two quantities."""
    if one == other:
        return Decimal(0)
    from kubernetes.utils import parse_quantity  # noqa: PLC0415 - as slow to import as Dagster, and rarely needed

    return Decimal(parse_quantity(one) - parse_quantity(other))


class Toleration(FrozenModel):
    """A toleration of a node's taints, as Kubernetes writes it."""

    key: str | None = Field(default=None, description="Key of the taint; none with 'Exists' tolerates every taint.")
    operator: Literal["Exists", "Equal"] = Field(default="Equal", description="Whether the value matters.")
    value: str | None = Field(default=None, description="Value of the taint, with 'Equal'.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Effect of the taint; none means every effect."
    )
    toleration_seconds: int | None = Field(
        default=None,
        validation_alias=AliasChoices("toleration_seconds", "tolerationSeconds"),
        description="How long a running pod stays on the node.",
    )

    @model_validator(mode="after")
    def _check_operator(self) -> Self:
        if self.operator == "Equal" and self.key is None:
            raise ValueError("a toleration without a key needs the operator Exists")
        if self.operator == "Exists" and self.value is not None:
            raise ValueError("a toleration with the operator Exists takes no value")
        return self


class ResourcePreset(FrozenModel):
    """Resources of a pod, and the nodes that it may run on."""

    cpu: Quantity | None = Field(default=None, description="CPUs, as request and as limit.")
    memory: Quantity | None = Field(default=None, description="Memory, as request and as limit.")
    cpu_request: Quantity | None = Field(default=None, description="CPUs that are requested, as floe writes it.")
    cpu_limit: Quantity | None = Field(default=None, description="CPUs as limit, as floe writes it.")
    memory_request: Quantity | None = Field(default=None, description="Memory that is requested, as floe writes it.")
    memory_limit: Quantity | None = Field(default=None, description="Memory as limit, as floe writes it.")
    requests: dict[str, Quantity] = Field(default_factory=dict, description="Requests by resource.")
    limits: dict[str, Quantity] = Field(default_factory=dict, description="Limits by resource.")
    node_selector: dict[str, str] = Field(default_factory=dict, description="Labels that a node must have.")
    tolerations: tuple[Toleration, ...] = Field(default=(), description="Taints that the pod tolerates.")

    @model_validator(mode="after")
    def _check_one_form(self) -> Self:
        forms = [
            name
            for name, is_given in (
                ("cpu and memory", self.cpu or self.memory),
                ("cpu_request, cpu_limit, memory_request and memory_limit", any(self._floe_form().values())),
                ("requests and limits", self.requests or self.limits),
            )
            if is_given
        ]
        if len(forms) > 1:
            raise ValueError(f"{'; '.join(forms)}: two ways to say the same, use one")
        return self

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if problems := dict.fromkeys(self._problems()):
            raise ValueError("; ".join(problems))
        return self

    def _problems(self) -> Iterator[str]:
        """What Kubernetes rejects although each quantity is valid, or reads differently than intended."""
        resources = self._resources()
        requests, limits = resources["requests"], resources["limits"]
        for name, value in (*requests.items(), *limits.items()):
            if name in _BYTES and value.endswith("m"):
                yield f"{name} {value} means thousandths of a byte: write {value.removesuffix('m')}Mi"
        for name, request in requests.items():
            limit = limits.get(name)
            if "/" in name and (limit is None or _compare(request, limit) != 0):
                yield f"{name} is never shared, so its limit must equal the request, {request}"
            elif limit is not None and _compare(request, limit) > 0:
                yield f"the {name} request {request} is above its limit {limit}"

    def _resources(self) -> dict[str, dict[str, str]]:
        short = {name: value for name, value in (("cpu", self.cpu), ("memory", self.memory)) if value is not None}
        floe = self._floe_form()
        return {
            "requests": self.requests or floe["requests"] or short,
            "limits": self.limits or floe["limits"] or short,
        }

    def _floe_form(self) -> dict[str, dict[str, str]]:
        requests = {"cpu": self.cpu_request, "memory": self.memory_request}
        limits = {"cpu": self.cpu_limit, "memory": self.memory_limit}
        return {
            kind: {name: value for name, value in given.items() if value is not None}
            for kind, given in (("requests", requests), ("limits", limits))
        }

    def to_tags(self) -> dict[str, Any]:
        """Return the preset as a tag of an op or a job."""
        resources = {kind: dict(given) for kind, given in self._resources().items() if given}
        tolerations = [each.model_dump(exclude_none=True) for each in self.tolerations]
        pod = {"node_selector": dict(self.node_selector), "tolerations": tolerations}
        config = {
            "container_config": {"resources": resources} if resources else {},
            "pod_spec_config": {name: value for name, value in pod.items() if value},
        }
        return {K8S_CONFIG_TAG: {name: value for name, value in config.items() if value}}


class PodSizes:
    """The resource presets of the artifacts, by name; an invalid one raises a `ValidationError`."""

    def __init__(self, presets: Mapping[str, Any]) -> None:
        self._presets: dict[str, ResourcePreset] = {}
        for name, given in presets.items():
            with raise_validation_error(ResourcePreset, f"{_PRESETS_PATH}.{name}"):
                self._presets[name] = ResourcePreset.model_validate(given)

    def tags_for(self, preset: str | None, *fallbacks: str) -> dict[str, Any]:
        """Return the tags of a preset, else of the first fallback that exists, else none.

        Raises:
            ValidationError: There is no preset of that name.
        """
        if preset is not None and preset not in self._presets:
            known = ", ".join(sorted(self._presets)) or "none"
            raise ValidationError(f"There is no resource preset '{preset}' in {_PRESETS_PATH}. Known are {known}.")
        for name in (preset, *fallbacks, _DEFAULT_PRESET):
            if name is not None and name in self._presets:
                return self._presets[name].to_tags()
        return {}

    def maintenance_tags(self, settings: MaintenanceSettings) -> dict[MaintenanceOperation, dict[str, Any]]:
        """Return the tags per maintenance asset: its preset, else the one of its name, 'maintenance' or 'default'."""
        return {
            which: self.tags_for(schedule.resources, which.value, _MAINTENANCE_PRESET)
            for which, schedule in settings.schedules.items()
        }

    def step_configs(self, assets: Iterable[object]) -> dict[str, dict[str, Any]]:
        """Return the pod configuration of data assets, by the name of their op.

        It is the preset of an asset's tag `floe/resources`, else 'default'. Left out are ops with
        their own tag `dagster-k8s/config`, and graphs, which have several ops.

        Raises:
            ValidationError: An asset names a preset that does not exist.
        """
        configs = {}
        for each in assets:
            if not isinstance(each, dg.AssetsDefinition) or not each.is_executable:
                continue
            if not isinstance(each.node_def, dg.OpDefinition):
                continue
            named = next((spec.tags[PRESET_TAG] for spec in each.specs if PRESET_TAG in spec.tags), None)
            tags = self.tags_for(named)
            if tags and K8S_CONFIG_TAG not in each.op.tags:
                configs[each.op.name] = tags[K8S_CONFIG_TAG]
        return configs

    def check_configs(
        self, checks: Iterable[dg.AssetChecksDefinition], tags: Mapping[MaintenanceOperation, Mapping[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        """Return the pod configuration of health checks, by the name of their op: that of the health asset."""
        config = tags[MaintenanceOperation.TABLE_HEALTH].get(K8S_CONFIG_TAG)
        return {each.op.name: config for each in checks} if config else {}


class ExecutorSettings(FrozenModel):
    """The executor, as compiled."""

    type: Literal["in_process", "multiprocess", "k8s_job_executor"] = Field(description="Dagster's executor.")
    config: dict[str, Any] = Field(default_factory=dict, description="Configuration of that executor.")


def build_executor(
    artifacts: CompiledArtifacts, step_configs: Mapping[str, Mapping[str, Any]] | None = None
) -> dg.ExecutorDefinition | None:
    """Return the executor that the artifacts name as `{"type": ..., "config": {...}}`; None leaves it to Dagster.

    Types are `in_process`, `multiprocess` and `k8s_job_executor`; the config is that executor's own. Only
    `k8s_job_executor` uses the `step_configs`, which are pod configurations by the name of an op.

    Raises:
        ValidationError: The type is unknown.
    """
    if not artifacts.executor:
        return None
    with raise_validation_error(ExecutorSettings, _EXECUTOR_PATH):
        settings = ExecutorSettings.model_validate(artifacts.executor)
    executor, config = _executor_named(settings.type), dict(settings.config)
    if settings.type == _K8S_EXECUTOR and step_configs:
        config[_PER_STEP] = {**step_configs, **config.get(_PER_STEP, {})}
    return executor.configured(config) if config else executor


def _executor_named(name: str) -> dg.ExecutorDefinition:
    if name == "in_process":
        return dg.in_process_executor
    if name == "multiprocess":
        return dg.multiprocess_executor
    from dagster_k8s import k8s_job_executor  # noqa: PLC0415 - imports the Kubernetes client

    executor: dg.ExecutorDefinition = k8s_job_executor
    return executor
