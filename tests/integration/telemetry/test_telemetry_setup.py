"""Telemetry that artifacts ask for, in processes of its own: OpenTelemetry lets a provider be set only once."""

import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.http_stub import refused_url
from support.otlp_receiver import Receiver

from floe_dagster_iceberg.factory import create_iceberg_resources
from floe_dagster_iceberg.telemetry import setup
from floe_dagster_iceberg.telemetry.setup import TelemetrySettings, flush, prepare, start_prepared

ROOT = Path(__file__).resolve().parents[3]
TOKEN = "tok-en-of-the-collector"
Json = dict[str, Any]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver.start() as receiver:
        yield receiver


@pytest.fixture(autouse=True)
def _nothing_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "_process", setup._Process())


def run(folder: Path, *arguments: str, **variables: str) -> Json:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "DAGSTER_DISABLE_TELEMETRY": "yes", **variables},
    )
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "stderr": done.stderr}


def artifacts(folder: Path, telemetry: Any) -> Json:
    catalog = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    return {
        "metadata": {"product_name": "Shop", "product_version": "1.2.3"},
        "plugins": {"catalog": {"type": "sql", "config": catalog}},
        "observability": {"telemetry": telemetry},
    }


@pytest.fixture
def run_location(tmp_path: Path) -> Callable[..., Json]:
    """Runs two assets of a code location with the given telemetry."""

    def run_location(how: str, telemetry: Json, **variables: str) -> Json:
        home, file = tmp_path / "dagster", tmp_path / "artifacts.json"
        home.mkdir()
        file.write_text(json.dumps(artifacts(tmp_path, telemetry)))
        places = {"FLOE_ARTIFACTS": str(file), "DAGSTER_HOME": str(home)}
        return run(tmp_path, "support.watched_location", how, **places, **variables)

    return run_location


@pytest.mark.slow
@pytest.mark.requirement("S2-US7.2", "S3-5")
def test_a_run_sends_its_spans_and_metrics_with_the_product_as_their_resource(
    run_location: Callable[..., Json], receiver: Receiver
) -> None:
    telemetry = {
        "otlp_endpoint": receiver.endpoint,
        "resource_attributes": {"deployment_environment": "dev", "floe_mode": "dev"},
        "authentication": {"auth_type": "bearer", "bearer_token": "${COLLECTOR_TOKEN}"},
    }

    result = run_location("in-process", telemetry, COLLECTOR_TOKEN=TOKEN)

    assert {key: result[key] for key in ("success", "environment_kept", "early")} == {
        "success": True,
        "environment_kept": True,
        "early": False,
    }
    spans = {span.span_id: span for span in receiver.spans()}
    # One of each: nothing is sent twice.
    assert [span.name for span in receiver.spans() if not span.parent_id] == [
        "iceberg.handle_output",
        "iceberg.load_input",
        "iceberg.handle_output",
    ]
    parents = {(span.name, spans[span.parent_id].name) for span in spans.values() if span.parent_id}
    assert {("iceberg.commit", "iceberg.handle_output"), ("iceberg.scan", "iceberg.load_input")} <= parents
    kinds = {name: kind for name, (kind, _) in receiver.metrics().items()}
    assert (kinds["iceberg.operations"], kinds["iceberg.operation.duration"]) == ("sum", "histogram")
    attributes = {
        "service.name": "Shop",
        "service.version": "1.2.3",
        "floe.product.name": "Shop",
        "floe.product.version": "1.2.3",
        "floe.namespace": "shop",
        "floe.mode": "dev",
        "deployment.environment": "dev",
        "deployment.environment.name": "dev",
    }
    for resource in [*(span.resource for span in spans.values()), *receiver.metric_resources()]:
        assert attributes.items() <= resource.items()
    assert {headers["authorization"] for headers in receiver.headers} == {f"Bearer {TOKEN}"}
    assert TOKEN not in result["stderr"] + str(receiver.sent)


@pytest.mark.requirement("S2-US7.2")
@pytest.mark.slow
def test_every_step_of_a_multiprocess_run_sends_its_own_before_its_process_ends(
    run_location: Callable[..., Json], receiver: Receiver
) -> None:
    assert run_location("multiprocess", {"otlp_endpoint": receiver.endpoint})["success"]

    stored = [span for span in receiver.spans() if span.name == "iceberg.handle_output"]
    assert {span.attributes["dagster.step_key"] for span in stored} == {"orders", "customers"}
    # Two processes that count must not look like one.
    assert len({span.resource["service.instance.id"] for span in stored}) == 2
    assert len({resource["service.instance.id"] for resource in receiver.metric_resources()}) == 2


@pytest.mark.parametrize("collector", ["refuses", "hangs"])
def test_a_collector_that_is_away_does_not_keep_a_process_from_ending(tmp_path: Path, collector: str) -> None:
    # The one takes no connections, the other takes them and never responds.
    with refused_url() as refused, socket.create_server(("127.0.0.1", 0)) as silent:
        hanging = f"http://127.0.0.1:{silent.getsockname()[1]}"
        result = run(tmp_path, "support.watched_script", refused if collector == "refuses" else hanging)

    # One request has its limit of 3 seconds; no second one is sent when the process ends.
    assert result["stderr"].count("Failed to export traces") == 1


def test_a_provider_that_is_already_set_stays(tmp_path: Path, receiver: Receiver) -> None:
    result = run(tmp_path, "support.watched_script", receiver.endpoint, "own")

    assert result["own_spans"] == 1
    assert receiver.spans() == []
    # No meter provider was set before.
    assert "iceberg.operations" in receiver.metrics()


def test_telemetry_that_is_switched_off_by_the_environment_loads_no_sdk(tmp_path: Path, receiver: Receiver) -> None:
    result = run(tmp_path, "support.watched_script", receiver.endpoint, OTEL_SDK_DISABLED="true")

    assert not result["sdk_loaded"]
    assert receiver.sent == []


@pytest.mark.parametrize("endpoint", ["http://[nobody", "${NOT_SET_ANYWHERE}"])
def test_an_address_that_is_invalid_is_reported_once_and_then_forgotten(
    endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    prepare(TelemetrySettings(endpoint))
    for _ in range(2):
        start_prepared()
        flush()

    (record,) = caplog.records
    assert record.getMessage().startswith("Telemetry could not be started (")


@pytest.mark.parametrize(
    ("telemetry", "complaint"),
    [
        ({"enabled": "perhaps"}, "observability.telemetry.enabled: Input should be a valid boolean"),
        (["grpc"], "observability.telemetry: Input should be a valid dictionary"),
        (
            {"otlp_endpoint": "http://collector:4318", "otlp_protocol": "http"},
            "observability.telemetry.otlp_protocol 'http' is not supported. Use 'grpc'",
        ),
        (
            {
                "otlp_endpoint": "http://collector:4317",
                "authentication": {"auth_type": "api_key", "api_key": "**********"},
            },
            "observability.telemetry.authentication.api_key holds no secret.",
        ),
    ],
    ids=["no flag", "no mapping", "no gRPC", "no secret"],
)
def test_settings_that_are_invalid_are_reported_and_nothing_else_suffers(
    tmp_path: Path, telemetry: Any, complaint: str, caplog: pytest.LogCaptureFixture
) -> None:
    bundle = create_iceberg_resources(artifacts(tmp_path, telemetry))

    assert "iceberg" in bundle
    assert complaint in caplog.text
    assert "No telemetry is sent." in caplog.text
    assert setup._process.wanted is None


def test_artifacts_set_the_collector_the_secret_and_the_sampling_ratio(tmp_path: Path) -> None:
    create_iceberg_resources(
        artifacts(
            tmp_path,
            {
                "otlp_endpoint": "http://collector:4317",
                "sampling": {"dev": 1.0, "prod": 0.1},
                "resource_attributes": {"service_name": "loader", "deployment_environment": "prod"},
                "authentication": {"auth_type": "api_key", "api_key": TOKEN, "header_name": "DD-API-KEY"},
            },
        )
    )

    wanted = setup._process.wanted
    assert wanted is not None
    assert (wanted.endpoint, wanted.sampling_ratio) == ("http://collector:4317", 0.1)
    assert wanted.resource["service.name"] == "loader"
    assert [(header.name, header.secret, header.scheme) for header in wanted.headers] == [("DD-API-KEY", TOKEN, "")]
    assert TOKEN not in repr(wanted)


@pytest.mark.parametrize("telemetry", [{"enabled": False, "otlp_endpoint": "http://collector:4317"}, {"enabled": True}])
def test_telemetry_that_is_switched_off_or_names_no_collector_prepares_nothing(tmp_path: Path, telemetry: Json) -> None:
    create_iceberg_resources(artifacts(tmp_path, telemetry))

    assert setup._process.wanted is None


def test_artifacts_choose_how_log_events_look(tmp_path: Path) -> None:
    logger = logging.getLogger("floe_dagster_iceberg")
    try:
        create_iceberg_resources(artifacts(tmp_path, {"logging": {"json_output": True, "log_level": "error"}}))

        assert setup._process.log_format == "json"
        assert logger.level == logging.ERROR
    finally:
        logger.setLevel(logging.NOTSET)
