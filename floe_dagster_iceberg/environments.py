"""Environments: names of branches that tables have beside main, one per preview of changed code."""

import hashlib
import re
from collections.abc import Mapping
from typing import Final

from floe_dagster_iceberg.errors import ValidationError

BRANCH_PREFIX: Final = "env-"
"""Of the branches of environments."""
INTERNAL_PREFIX: Final = "floe-"
"""Of branches that the package makes for itself, such as those of audits."""
AUTO: Final = "auto"
"""The environment of the Dagster+ branch deployment that the process runs in; none elsewhere."""
GIT_BRANCH: Final = "DAGSTER_CLOUD_GIT_BRANCH"
PULL_REQUEST: Final = "DAGSTER_CLOUD_PULL_REQUEST_ID"
IS_BRANCH_DEPLOYMENT: Final = "DAGSTER_CLOUD_IS_BRANCH_DEPLOYMENT"
_LONGEST_NAME: Final = 60
_HASH_DIGITS: Final = 8
_RESERVED: Final = ("main", "master")


def environment_name(text: str) -> str:
    """The name of an environment, made of the letters, digits, '-' and '_' of a text.

    Anything else, as in the name of a Git branch, becomes '-', and a hash keeps two texts apart:

    >>> environment_name("pr-12"), environment_name("feature/new prices")
    ('pr-12', 'feature-new-prices-f7620175')

    Raises:
        ValidationError: Nothing is left of the text, or it means production.
    """
    text = text.strip()
    if text.lower() in _RESERVED:
        raise ValidationError(
            f"'{text}' cannot name an environment: it would read like production. Leave 'environment' out to write to "
            "main, or choose another name."
        )
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")
    if not name:
        raise ValidationError(
            f"The environment '{text}' has no letter or digit. Name it, such as 'pr-12', or leave 'environment' out to "
            "write to main."
        )
    if name == text and len(name) <= _LONGEST_NAME:
        return name
    digits = hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{name[: _LONGEST_NAME - _HASH_DIGITS - 1]}-{digits}"


def detect_environment(variables: Mapping[str, str]) -> str | None:
    """The environment of a branch deployment, by its environment variables; None in any other deployment."""
    if variables.get(IS_BRANCH_DEPLOYMENT, "1") == "0":
        return None
    if branch := variables.get(GIT_BRANCH, "").strip():
        return environment_name(branch)
    pull_request = variables.get(PULL_REQUEST, "").strip()
    return environment_name(f"pr-{pull_request}") if pull_request else None


def branch_of(environment: str) -> str:
    """The branch of an environment."""
    return f"{BRANCH_PREFIX}{environment}"


def environment_of(branch: str) -> str | None:
    """The environment of a branch; None for a branch of another kind."""
    name = branch.removeprefix(BRANCH_PREFIX)
    return name if name and name != branch else None
