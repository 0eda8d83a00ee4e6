"""What a Kubernetes API server says to a manifest: its schema, and what no schema can say."""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

import kubernetes_validate
from kubernetes.utils.quantity import parse_quantity

# One that is in use today; the schemas of all versions since 1.25 come with the package.
VERSION = "1.31"


def refusals(manifest: Mapping[str, Any]) -> list[str]:
    """Why it would be refused; empty when it is taken. Strict: an unknown field is refused, not dropped."""
    try:
        kubernetes_validate.validate(dict(manifest), VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{'.'.join(map(str, error.path))}: {error.message}"]
    return [problem for container in _containers(manifest) for problem in _problems(container)]


def _containers(manifest: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    spec = manifest.get("spec", {})
    pod = spec.get("template", {}).get("spec", {}) or spec
    mounted = {volume["name"] for volume in pod.get("volumes") or []}
    for container in pod.get("containers") or []:
        yield {**container, "_volumes": mounted}


def _problems(container: Mapping[str, Any]) -> Iterator[str]:
    for mount in container.get("volumeMounts") or []:
        if mount["name"] not in container["_volumes"]:
            yield f"volumeMounts: there is no volume '{mount['name']}'"
    resources = container.get("resources") or {}
    limits = {name: _quantity(value) for name, value in (resources.get("limits") or {}).items()}
    for name, value in (resources.get("requests") or {}).items():
        request, limit = _quantity(value), limits.get(name)
        if request is None:
            yield f"requests.{name}: '{value}' is no quantity"
        elif limit is not None and request > limit:
            yield f"requests.{name}: must be less than or equal to its limit"
        elif limit is None and "/" in name:
            yield f"limits.{name}: must be set, it is not overcommitted"
    yield from (f"limits.{name}: is no quantity" for name, amount in limits.items() if amount is None)


def _quantity(value: object) -> Decimal | None:
    try:
        return parse_quantity(value)
    except ValueError:
        return None
