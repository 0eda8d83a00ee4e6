"""Names of environments: from a setting, a Git branch or a branch deployment to a branch of tables."""

import hashlib
from collections.abc import Mapping

import pytest
from dagster import AssetKey, EnvVar, build_output_context

from floe_dagster_iceberg.environments import branch_of, detect_environment, environment_name, environment_of
from floe_dagster_iceberg.errors import SecretNotFoundError, ValidationError
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.run_identity import RunIdentity, build_idempotency_key


@pytest.mark.parametrize("name", ["pr-12", "Feature_3", "a", "x" * 60])
def test_a_valid_name_stays_as_it_is(name: str) -> None:
    assert environment_name(name) == name
    assert environment_of(branch_of(name)) == name


def test_different_git_branches_are_different_environments() -> None:
    texts = ["feature/x", "feature-x", "feature x", "feature//x", "y" * 70, "y" * 71]

    names = {environment_name(text) for text in texts}

    assert len(names) == len(texts)
    assert all(len(name) <= 60 and name.replace("-", "").isalnum() for name in names)


@pytest.mark.parametrize("text", ["", "  ", "/", "--", "main", "Master"])
def test_a_name_that_may_mean_production_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match=r"environment"):
        environment_name(text)


@pytest.mark.parametrize("branch", ["main", "audit", "env-", "environment"])
def test_other_branches_are_no_environments(branch: str) -> None:
    assert environment_of(branch) is None


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"DAGSTER_CLOUD_GIT_BRANCH": "prices"}, "prices"),
        ({"DAGSTER_CLOUD_GIT_BRANCH": "prices", "DAGSTER_CLOUD_PULL_REQUEST_ID": "12"}, "prices"),
        ({"DAGSTER_CLOUD_GIT_BRANCH": " ", "DAGSTER_CLOUD_PULL_REQUEST_ID": "12"}, "pr-12"),
        ({"DAGSTER_CLOUD_GIT_BRANCH": "main", "DAGSTER_CLOUD_IS_BRANCH_DEPLOYMENT": "0"}, None),
    ],
)
def test_auto_follows_the_branch_deployment(
    variables: Mapping[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert detect_environment(variables) == expected
    assert IcebergResource(environment="auto").environment_name == expected


def test_an_environment_variable_names_it_and_must_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    iceberg = IcebergResource(environment=EnvVar("PREVIEW"))
    with pytest.raises(SecretNotFoundError, match="PREVIEW"):
        _ = iceberg.environment_name
    monkeypatch.setenv("PREVIEW", "")
    with pytest.raises(ValidationError, match="has no letter or digit"):
        _ = iceberg.environment_name

    monkeypatch.setenv("PREVIEW", "pr-3")

    assert iceberg.environment_branch == "env-pr-3"


def test_production_has_no_environment() -> None:
    assert IcebergResource().environment_name is None
    assert IcebergResource().environment_branch is None


def test_the_same_work_has_another_key_in_each_environment_and_production_keeps_its_own() -> None:
    context = build_output_context(asset_key=["shop", "orders"])
    keys = [
        build_idempotency_key(context, RunIdentity("run", "run", "step", environment), ["2026-01-01"])
        for environment in (None, "pr-1", "pr-2")
    ]

    parts = ("run", "asset", AssetKey(["shop", "orders"]).to_string(), "2026-01-01")
    # What snapshots of earlier versions of this package hold: their retries must still be recognised.
    assert keys[0] == hashlib.sha256("\x00".join(parts).encode()).hexdigest()
    assert len(set(keys)) == 3
