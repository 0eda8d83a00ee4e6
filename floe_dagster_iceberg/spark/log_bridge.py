"""Spark's log, through Python's.

The JVM would write to the process's stderr, past everything that collects logs there. Its
log4j sends each event to a socket of this process instead, and here it becomes a record of
the logger `spark.<Java class>`.
"""

import json
import logging
import socket
import threading
from pathlib import Path
from typing import Any, Final

from floe_dagster_iceberg.secrets import redact
from floe_dagster_iceberg.spark.errors import without_quotes

_ROOT: Final = "spark"

_LEVELS: Final = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": logging.DEBUG,
}

# One JSON object per line. A missing native library and a busy port are no news to anybody.
_LOG4J: Final = """<?xml version="1.0" encoding="UTF-8"?>
<Configuration status="ERROR">
  <Appenders>
    <Socket name="python" host="127.0.0.1" port="{port}" protocol="TCP" ignoreExceptions="true" immediateFail="true">
      <PatternLayout charset="UTF-8" alwaysWriteExceptions="false">
        <Pattern>{{"level":"%p","logger":"%enc{{%c}}{{JSON}}","message":"%enc{{%m}}{{JSON}}","thrown":"%enc{{%ex{{short.className}}}}{{JSON}}"}}%n</Pattern>
      </PatternLayout>
    </Socket>
  </Appenders>
  <Loggers>
    <Root level="WARN"><AppenderRef ref="python"/></Root>
    <Logger name="org.apache.hadoop.util.NativeCodeLoader" level="ERROR"/>
    <Logger name="org.apache.spark.util.Utils" level="ERROR"/>
  </Loggers>
</Configuration>
"""


class LogBridge:
    """Takes one JVM's log events; what comes in is handled by a thread that never keeps the process alive."""

    def __init__(self, folder: Path) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1)
        port = self._listener.getsockname()[1]
        self._config = folder / "log4j2.xml"
        self._config.write_text(_LOG4J.format(port=port), encoding="utf-8")
        threading.Thread(target=self._receive, name="spark-log", daemon=True).start()

    @property
    def java_option(self) -> str:
        """What makes a JVM use it."""
        return f"-Dlog4j2.configurationFile={self._config.as_uri()}"

    def close(self) -> None:
        """Stop waiting for a JVM; one that is connected keeps its connection."""
        self._listener.close()

    def _receive(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        finally:
            # One JVM per process: nobody else has business here.
            self._listener.close()
        with connection, connection.makefile("r", encoding="utf-8", errors="replace") as events:
            for event in events:
                _emit(event)


class _WithoutSecrets(logging.Filter):
    """Masks secrets in what Py4J tells those who debug it: every word to the JVM, a catalog's conf included."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = redact(record.getMessage()), ()
        return True


_without_secrets: Final = _WithoutSecrets()


def install_log_redaction() -> None:
    """Keep secrets out of Py4J's log, and cell values out of PySpark's; doing it twice changes nothing."""
    for name in ("py4j.clientserver", "py4j.java_gateway"):
        logging.getLogger(name).addFilter(_without_secrets)
    # They write the words of every exception to stderr, which quote values; whoever catches it has them anyway.
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(name).disabled = True


def _emit(event: str) -> None:
    try:
        said: dict[str, Any] = json.loads(event, strict=False)
    except ValueError:
        said = {"message": event}
    text = ": ".join(filter(None, (said.get("message", "").strip(), said.get("thrown", "").strip())))
    # Where it happened in Spark helps nobody who reads Dagster's log.
    text = text.split("\n\tat ")[0]
    logger = logging.getLogger(f"{_ROOT}.{said.get('logger', '')}".rstrip("."))
    logger.log(_LEVELS.get(said.get("level", ""), logging.WARNING), "%s", redact(without_quotes(text)))
