"""A foreign exception and what was being done when it came, in words that may be shown."""

import re
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

from floe_dagster_iceberg.plugins.http_failures import describe_http_failure
from floe_dagster_iceberg.secrets import scrub_text

_METADATA_FILE = re.compile(r"[^\s'\"<>()\[\]]+\.metadata\.json")
_LONGEST_REASON = 200


@dataclass(frozen=True)
class Failed:
    """A foreign exception and what was being done when it came."""

    error: BaseException
    catalog: str
    table: object
    namespace: object

    @property
    def subject(self) -> str:
        return f"catalog '{self.catalog}'" if self.table is None else f"table '{self.table}'"

    @property
    def status(self) -> int | None:
        """HTTP status, when the exception stands for a response."""
        for error in (self.error, self.error.__cause__):
            if (status := getattr(getattr(error, "response", None), "status_code", None)) is not None:
                return int(status)
        return None

    @property
    def reason(self) -> str:
        """What went wrong, without a word that the server chose."""
        kind = type(self.error).__name__
        if self.status is not None:
            return f"HTTP {self.status} ({kind})"
        if (told := describe_http_failure(self.error)) is not None:
            return told
        text = _first_line(str(getattr(self.error, "orig", None) or self.error))
        return f"{kind}: {text}" if text else kind

    @property
    def metadata_file(self) -> str | None:
        """The metadata file of the table that the exception complains about, if it is one."""
        found = None if self.table is None else _METADATA_FILE.search(str(self.error))
        return None if found is None else found[0]

    @property
    def namespace_name(self) -> str:
        if self.namespace is not None:
            return _dotted(self.namespace)
        parent, _, name = _dotted(self.table).rpartition(".")
        return parent or name


def _first_line(text: str) -> str:
    lines = scrub_text(text).strip().splitlines()
    return shorten(lines[0], _LONGEST_REASON, placeholder=" …").rstrip(". ") if lines else ""


def _dotted(identifier: Any) -> str:
    return ".".join(identifier) if isinstance(identifier, tuple) else str(identifier)
