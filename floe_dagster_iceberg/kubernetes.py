"""Sizes of pods and the executor, as the artifacts say. Nothing of Kubernetes is imported unless it is asked for.

A resource preset is either short or long:

    "small": {"cpu": "500m", "memory": "1Gi"}
    "large": {"requests": {"cpu": "2", "memory": "8Gi"}, "limits": {"memory": "8Gi"},
              "node_selector": {"pool": "batch"}, "tolerations": [{"key": "batch", "operator": "Exists"}]}

It becomes the tag `dagster-k8s/config`: on an op it sizes the step's pod, on a job the run's. The ops of
data assets are the user's; they stay as they are, and the executor is told what their steps get.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Self

from dagster import (
    AssetsDefinition,
    AssetSpec,
    ExecutorDefinition,
    OpDefinition,
    in_process_executor,
    multiprocess_executor,
)
from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from floe_dagster_iceberg.artifacts import CompiledArtifacts
from floe_dagster_iceberg.artifacts.shapes import faults_as_errors
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.maintenance.settings import MaintenanceAsset, MaintenanceSettings
from floe_dagster_iceberg.models.base import FrozenModel

K8S_CONFIG_TAG: Final = "dagster-k8s/config"
PRESET_TAG: Final = "floe/resources"
_PRESETS_PATH: Final = "plugins.orchestrator.config.resource_presets"
_EXECUTOR_PATH: Final = "plugins.orchestrator.config.executor"
_DEFAULT_PRESET: Final = "default"
_MAINTENANCE_PRESET: Final = "maintenance"
_K8S_EXECUTOR: Final = "k8s_job_executor"
# Where that executor's own configuration takes what single steps get.
_PER_STEP: Final = "per_step_k8s_config"


def _as_text(value: object) -> object:
    # JSON writes whole processors as numbers, Kubernetes takes text.
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Quantity = Annotated[
    str, BeforeValidator(_as_text), StringConstraints(pattern=r"^\d+(\.\d+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei)?$")
]


class ResourcePreset(FrozenModel):
    """What a pod gets."""

    cpu: Quantity | None = Field(default=None, description="Processors, requested and at most.")
    memory: Quantity | None = Field(default=None, description="Memory, requested and at most.")
    requests: dict[str, Quantity] = Field(default_factory=dict, description="What is reserved, by resource.")
    limits: dict[str, Quantity] = Field(default_factory=dict, description="What is allowed at most, by resource.")
    node_selector: dict[str, str] = Field(default_factory=dict, description="Labels that a node must have.")
    tolerations: tuple[dict[str, Any], ...] = Field(default=(), description="Taints that the pod tolerates.")

    @model_validator(mode="after")
    def _short_or_long(self) -> Self:
        if (self.cpu or self.memory) and (self.requests or self.limits):
            raise ValueError("cpu and memory are short for requests and limits: give one or the other")
        return self

    def to_tags(self) -> dict[str, Any]:
        """The preset as a tag of an op or a job."""
        short = {name: value for name, value in (("cpu", self.cpu), ("memory", self.memory)) if value is not None}
        resources = {"requests": self.requests or short, "limits": self.limits or short}
        pod = {"node_selector": dict(self.node_selector), "tolerations": [dict(each) for each in self.tolerations]}
        config = {
            "container_config": {"resources": {kind: dict(given) for kind, given in resources.items() if given}},
            "pod_spec_config": {name: value for name, value in pod.items() if value},
        }
        return {K8S_CONFIG_TAG: {name: value for name, value in config.items() if value}}


class PodSizes:
    """The resource presets of the artifacts, by name.

    Raises:
        ValidationError: A preset is not valid; its path is named.
    """

    def __init__(self, presets: Mapping[str, Any]) -> None:
        self._presets: dict[str, ResourcePreset] = {}
        for name, given in presets.items():
            with faults_as_errors(f"{_PRESETS_PATH}.{name}"):
                self._presets[name] = ResourcePreset.model_validate(given)

    def tags_for(self, preset: str | None, *fallbacks: str) -> dict[str, Any]:
        """Tags of a preset, else of the first fallback that there is, else none.

        Raises:
            ValidationError: The preset is named, and there is none of that name.
        """
        if preset is not None and preset not in self._presets:
            known = ", ".join(sorted(self._presets)) or "none"
            raise ValidationError(f"There is no resource preset '{preset}' in {_PRESETS_PATH}. Known are {known}.")
        for name in (preset, *fallbacks, _DEFAULT_PRESET):
            if name is not None and name in self._presets:
                return self._presets[name].to_tags()
        return {}

    def maintenance_tags(self, settings: MaintenanceSettings) -> dict[MaintenanceAsset, dict[str, Any]]:
        """Tags of each maintenance asset: its own preset, the one called like it, 'maintenance', or 'default'."""
        return {
            which: self.tags_for(schedule.resources, which.value, _MAINTENANCE_PRESET)
            for which, schedule in settings.schedules.items()
        }

    def step_configs(self, assets: Iterable[AssetsDefinition | AssetSpec]) -> dict[str, dict[str, Any]]:
        """What the steps of data assets get, by the name of their op.

        It is the preset that an asset's tag `floe/resources` names, else 'default'. Left out are ops
        that say it themselves by their tag `dagster-k8s/config`, and graphs, which have several ops.

        Raises:
            ValidationError: An asset names a preset that there is not.
        """
        configs = {}
        for each in assets:
            if isinstance(each, AssetSpec) or not each.is_executable or not isinstance(each.node_def, OpDefinition):
                continue
            named = next((spec.tags[PRESET_TAG] for spec in each.specs if PRESET_TAG in spec.tags), None)
            tags = self.tags_for(named)
            if tags and K8S_CONFIG_TAG not in each.op.tags:
                configs[each.op.name] = tags[K8S_CONFIG_TAG]
        return configs


class _ExecutorSettings(FrozenModel):
    type: str = Field(pattern="^(in_process|multiprocess|k8s_job_executor)$")
    config: dict[str, Any] = Field(default_factory=dict)


def build_executor(
    artifacts: CompiledArtifacts, step_configs: Mapping[str, Mapping[str, Any]] | None = None
) -> ExecutorDefinition | None:
    """The executor that the artifacts name, as `{"type": ..., "config": {...}}`; None leaves it to Dagster.

    Types are `in_process`, `multiprocess` and `k8s_job_executor`; the config is that executor's own.

    Args:
        artifacts: The artifacts.
        step_configs: What steps get, by the name of their op; only `k8s_job_executor` has pods to give it to.

    Raises:
        ValidationError: The type is unknown.
    """
    if not artifacts.executor:
        return None
    with faults_as_errors(_EXECUTOR_PATH):
        settings = _ExecutorSettings.model_validate(artifacts.executor)
    executor, config = _executor_named(settings.type), dict(settings.config)
    if settings.type == _K8S_EXECUTOR and step_configs:
        config[_PER_STEP] = {**step_configs, **config.get(_PER_STEP, {})}
    return executor.configured(config) if config else executor


def _executor_named(name: str) -> ExecutorDefinition:
    if name == "in_process":
        return in_process_executor
    if name == "multiprocess":
        return multiprocess_executor
    from dagster_k8s import k8s_job_executor  # noqa: PLC0415 - brings the Kubernetes client along

    executor: ExecutorDefinition = k8s_job_executor
    return executor
