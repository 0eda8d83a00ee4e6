"""One Spark application per process, and a session in it for each configuration of catalogs.

The JVM that PySpark starts holds one application; only its sessions can differ. An application that
was started during a Dagster run stops with the last run. One that was started by a script, a notebook
or other code keeps running.
"""

import atexit
import hashlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from floe_dagster_iceberg.errors import EngineCapabilityError
from floe_dagster_iceberg.spark.conf import (
    CATALOG_PREFIX,
    Scratch,
    SessionSettings,
    application_conf,
    launch_environment,
)
from floe_dagster_iceberg.spark.environment import ensure_java
from floe_dagster_iceberg.spark.errors import SPARK_ERRORS, redacted
from floe_dagster_iceberg.spark.jobs import is_connect
from floe_dagster_iceberg.spark.log_bridge import install_log_redaction
from floe_dagster_iceberg.spark.session_users import SESSION_USERS
from floe_dagster_iceberg.telemetry import attributes as attrs, traced_step

Starter = Callable[[dict[str, str]], SparkSession]
"""Starts an application from its conf, as dagster-pyspark's lazy session does."""

# Conf of an application that we started: PySpark may return one that other code started.
_OWNER_CONF = "spark.floe.application"

# Two catalogs of one name are the same if these agree; the rest is how to reach them.
_IDENTITY = ("uri", "warehouse", "type", "catalog-impl")


@dataclass
class _Application:
    """A running application, and the sessions opened in it.

    Attributes:
        fingerprint: Hash of the settings it was started with.
        packages: The jars it was started with.
        root: Its first session.
        is_ours: Whether we started it.
        stops_with_runs: Whether it stops with the last Dagster run.
    """

    fingerprint: str
    packages: frozenset[str]
    root: SparkSession
    is_ours: bool
    stops_with_runs: bool = False
    sessions: dict[str, SparkSession] = field(default_factory=dict)

    def stop_if_alive(self) -> None:
        if not _is_alive(self.root):
            return
        # Sessions of Connect end one by one, those of an application with it.
        for session in self.sessions.values() if is_connect(self.root) else (self.root,):
            session.stop()


class SessionRegistry:
    """The application and sessions of this process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._application: _Application | None = None
        self._process = os.getpid()
        # PySpark keeps its JVM when an application stops, so both last as long as the process.
        self._scratch: Scratch | None = None
        self._packages: frozenset[str] | None = None

    def open_session(self, settings: SessionSettings, start: Starter) -> SparkSession:
        """Return the session for these settings; the first one starts Spark.

        Raises:
            EngineCapabilityError: Java is missing, no jars fit, Spark does not start, or this process
                already runs Spark with other settings.
        """
        with self._lock:
            self._forget_stopped()
            application = self._application = self._application or self._start(settings, start)
            if application.is_ours:
                if application.fingerprint != _fingerprint(settings, with_catalogs=False):
                    raise _already_started("another master, remote or spark_config")
                _check_packages(settings, application.packages)
            key = _fingerprint(settings, with_catalogs=True)
            if key not in application.sessions:
                application.sessions[key] = _open(application, settings)
            return application.sessions[key]

    def stop_with_runs(self) -> None:
        """Stop the application if it was started during a Dagster run."""
        with self._lock:
            if self._application is not None and self._application.stops_with_runs:
                self._stop(self._application)

    def close(self) -> None:
        """Stop Spark if we started it, and delete its temporary files."""
        with self._lock:
            if self._process != os.getpid():
                return
            if self._application is not None and self._application.is_ours:
                self._stop(self._application)
            if self._scratch is not None:
                self._scratch.remove()

    def _stop(self, application: _Application) -> None:
        self._application = None
        # In a thread of its own: the caller's connection to the JVM may still be busy with an action of an
        # interrupted asset, which only stopping ends.
        stopping = threading.Thread(target=application.stop_if_alive, name="spark-stop")
        stopping.start()
        stopping.join()

    def _forget_stopped(self) -> None:
        if self._process != os.getpid():
            # A forked child has neither the JVM's sockets nor its threads.
            self._application, self._scratch, self._packages, self._process = None, None, None, os.getpid()
        if self._application is not None and not _is_alive(self._application.root):
            self._application = None

    @traced_step("start_spark", lambda *_, **__: {attrs.ENGINE: "spark"})
    def _start(self, settings: SessionSettings, start: Starter) -> _Application:
        fingerprint = _fingerprint(settings, with_catalogs=False)
        running = SparkSession.getActiveSession()
        if running is not None and _is_alive(running):
            return _Application(fingerprint, settings.all_packages, running, is_ours=False)
        if settings.remote:
            root, is_ours = _start_remote(settings.remote, start), True
        else:
            root, is_ours = self._start_here(settings, start)
        stops_with_runs = is_ours and bool(SESSION_USERS)
        return _Application(fingerprint, settings.all_packages, root, is_ours, stops_with_runs)

    def _start_here(self, settings: SessionSettings, start: Starter) -> tuple[SparkSession, bool]:
        ensure_java()
        scratch = self._scratch = self._scratch or Scratch()
        conf = {**application_conf(settings, scratch), _OWNER_CONF: scratch.folder.name}
        if self._packages is not None:
            _check_packages(settings, self._packages)
        try:
            with launch_environment(settings, scratch):
                root = start(conf)
        except (*SPARK_ERRORS, OSError) as error:
            raise EngineCapabilityError(
                f"Spark could not start with master '{settings.master}' ({type(error).__name__}). Check that the "
                "master is running and that the jars can be downloaded; see the JVM's output on stderr.",
                engine="spark",
            ) from redacted(error)
        self._packages = self._packages or settings.all_packages
        return root, root.sparkContext.getConf().get(_OWNER_CONF) == scratch.folder.name


def ensure_catalog(session: SparkSession, conf: Mapping[str, str]) -> None:
    """Register catalogs in a session that other code opened.

    Raises:
        EngineCapabilityError: The session has another catalog of that name.
    """
    install_log_redaction()
    for key in (key for key in conf if key.startswith(CATALOG_PREFIX) and "." not in key.removeprefix(CATALOG_PREFIX)):
        own = {name: value for name, value in conf.items() if name == key or name.startswith(f"{key}.")}
        if session.conf.get(key, None) is None:
            for name, value in own.items():
                session.conf.set(name, value)
        identity = [name for name in own if name == key or name.removeprefix(f"{key}.") in _IDENTITY]
        if any(session.conf.get(name, None) != own[name] for name in identity):
            raise EngineCapabilityError(
                f"The DataFrame belongs to a Spark session whose catalog '{key.removeprefix(CATALOG_PREFIX)}' differs "
                "from the IO manager's. Create DataFrames with the session of the IO manager's IcebergSparkResource.",
                engine="spark",
            )


def _start_remote(remote: str, start: Starter) -> SparkSession:
    try:
        return start({"spark.remote": remote})
    except ImportError as error:
        raise EngineCapabilityError(
            "Spark Connect needs packages that are not installed. Install 'pyspark[connect]'.", engine="spark"
        ) from redacted(error)
    except SPARK_ERRORS as error:
        raise EngineCapabilityError(
            f"The Spark Connect server is unreachable ({type(error).__name__}). Check 'remote', and that it runs.",
            engine="spark",
        ) from redacted(error)


def _open(application: _Application, settings: SessionSettings) -> SparkSession:
    session = application.root
    if application.sessions or not application.is_ours:
        remote = settings.remote
        session = SparkSession.builder.remote(remote).create() if remote else application.root.newSession()
    conf = settings.session
    if settings.is_local and application.is_ours:
        conf = {**_conf_of_one_machine(application.root), **conf}
    if settings.remote:
        # The application is the server's; a session can only set the user's SQL conf.
        sql = {key: value for key, value in settings.application.items() if key.startswith("spark.sql.")}
        conf = {"spark.sql.session.timeZone": "UTC", **sql, **conf}
    install_log_redaction()
    for key, value in conf.items():
        session.conf.set(key, value)
    return session


def _conf_of_one_machine(root: SparkSession) -> dict[str, str]:
    """Few shuffle partitions: Spark's default of 200 is slow for small data on one machine."""
    partitions = "spark.sql.shuffle.partitions"
    if root.sparkContext.getConf().contains(partitions):
        return {}
    # The number of cores according to Java, which respects the limits of a container.
    return {partitions: str(2 * root.sparkContext.defaultParallelism)}


def _check_packages(settings: SessionSettings, started_with: frozenset[str]) -> None:
    if not settings.all_packages <= started_with:
        raise _already_started("fewer jars than this catalog or storage needs")


def _already_started(reason: str) -> EngineCapabilityError:
    return EngineCapabilityError(
        f"This process has started Spark with {reason}, and can only start one. Use the same IcebergSparkResource "
        "for all assets of a run, and a separate process for each run.",
        engine="spark",
    )


def _is_alive(session: SparkSession) -> bool:
    if is_connect(session):
        stopped: Any = session.is_stopped  # type: ignore[attr-defined]  # only sessions of Connect have it
        return not stopped
    try:
        return bool(session.sparkContext.defaultParallelism)
    except (AttributeError, *SPARK_ERRORS, OSError):
        # What PySpark raises for a stopped context depends on how it was stopped.
        return False


def _fingerprint(settings: SessionSettings, *, with_catalogs: bool) -> str:
    """A hash of the settings, so that no secret is kept as a key."""
    conf = {key: value for key, value in settings.application.items() if key != "spark.jars.packages"}
    catalogs = settings.session if with_catalogs else {}
    identity = [settings.master, settings.remote, conf, catalogs]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


REGISTRY = SessionRegistry()
SESSION_USERS.on_last_removed = REGISTRY.stop_with_runs
atexit.register(REGISTRY.close)
