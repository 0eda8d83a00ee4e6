"""What docs/telemetry.md says is what happens."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry import metrics
from support.otlp_receiver import Receiver

from floe_dagster_iceberg.telemetry import attributes, metrics as instruments

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "telemetry.md").read_text()


def column(heading: str) -> set[str]:
    """Names in the first column of the table below a heading."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return {
        name for row in re.findall(r"^\| (`.+?) \|", section, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)
    }


@pytest.mark.slow
@pytest.mark.requirement("S2-US7.2", "S3-5")
def test_the_code_of_the_page_sends_the_trace_that_its_snapshot_names(tmp_path: Path) -> None:
    code = "".join(re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
    with Receiver.start() as receiver:
        # In a process of its own: a provider can be set only once.
        code = code.replace("http://127.0.0.1:4317", receiver.endpoint) + "print(trace_id)\n"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] in {span.trace_id for span in receiver.spans() if span.name == "iceberg.commit"}


def test_every_attribute_is_in_the_table() -> None:
    known = {value for name, value in vars(attributes).items() if name.isupper() and isinstance(value, str)}

    assert column("Spans") == known - {attributes.SCOPE, attributes.DAGSTER}


def test_every_metric_is_in_the_table() -> None:
    found = [value for value in vars(instruments).values() if not isinstance(value, dict)]
    found += [gauge for value in vars(instruments).values() if isinstance(value, dict) for gauge in value.values()]
    # Proxies, as long as no provider is set, and the SDK's own after that.
    names = {getattr(each, "_name", None) or each.name for each in found if isinstance(each, metrics.Instrument)}

    assert column("Metrics") == names
