"""Spark's log events as records of Python's logger `spark.<Java class>`.

The JVM would write to the process's stderr, where Python's log handlers do not see it. Its log4j
sends each event to a socket of this process instead.
"""

import json
import logging
import socket
import threading
from pathlib import Path
from typing import Any, Final

from floe_dagster_iceberg.secrets import redact
from floe_dagster_iceberg.spark.errors import redact_messages

_LEVELS: Final = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": logging.DEBUG,
}

# One JSON object per line. A missing native library and a busy port need no warning.
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
    """Receives the log events of one JVM, in a thread that does not keep the process alive."""

    def __init__(self, folder: Path) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1)
        port = self._listener.getsockname()[1]
        self._config = folder / "log4j2.xml"
        self._config.write_text(_LOG4J.format(port=port), encoding="utf-8")
        threading.Thread(target=self._receive, name="spark-log", daemon=True).start()

    @property
    def java_option(self) -> str:
        return f"-Dlog4j2.configurationFile={self._config.as_uri()}"

    def close(self) -> None:
        """Stop listening; a JVM that is connected stays connected."""
        self._listener.close()

    def _receive(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        finally:
            # One JVM per process, so one connection.
            self._listener.close()
        with connection, connection.makefile("r", encoding="utf-8", errors="replace") as events:
            for event in events:
                _emit(event)


def _redact_record(record: logging.LogRecord) -> bool:
    # Py4J's debug log has every command to the JVM, including a catalog's conf.
    record.msg, record.args = redact(record.getMessage()), ()
    return True


def install_log_redaction() -> None:
    """Keep secrets out of Py4J's log, and cell values out of PySpark's. Idempotent."""
    for name in ("py4j.clientserver", "py4j.java_gateway"):
        logging.getLogger(name).addFilter(_redact_record)
    # They write the message of every exception to stderr, which may quote values.
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(name).disabled = True


def _emit(event: str) -> None:
    try:
        fields: dict[str, Any] = json.loads(event, strict=False)
    except ValueError:
        fields = {"message": event}
    text = ": ".join(filter(None, (fields.get("message", "").strip(), fields.get("thrown", "").strip())))
    # Without the Java stack trace, which does not help readers of Dagster's log.
    text = text.split("\n\tat ")[0]
    logger = logging.getLogger(f"spark.{fields.get('logger', '')}".rstrip("."))
    logger.log(_LEVELS.get(fields.get("level", ""), logging.WARNING), "%s", redact(redact_messages(text)))
