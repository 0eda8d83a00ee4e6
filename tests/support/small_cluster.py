"""A Kubernetes API as small as dagster-k8s can do with, on loopback: it judges Jobs and runs them here.

What is posted is refused or taken as an API server would. Jobs run as processes of this machine: a volume is
a folder, and whatever names its mount path in a variable means that folder. Images, users and limits of
pods are looked at by the tests and not applied. Pods without a Job, as Spark posts them, wait for ever.
"""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from support.kubernetes_admission import refusals

_JOBS = re.compile(r"/apis/batch/v1/namespaces/(?P<namespace>[\w-]+)/jobs/(?P<name>[\w-]+)(/status)?$")
_NOT_FOUND = {"kind": "Status", "apiVersion": "v1", "code": 404, "message": "not found"}


@dataclass
class SmallCluster:
    """The cluster's memory.

    Attributes:
        folder: Where logs of pods are, and the kubeconfig.
        secrets: Variables of each Secret, for `envFrom`.
        volumes: Folder of each volume, by its name.
        jobs: Jobs that were posted and taken, by name.
        pods: Pods that were posted and taken, by name.
        refused: What was posted and refused, and why.
    """

    folder: Path
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    volumes: Mapping[str, Path] = field(default_factory=dict)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    refused: list[list[str]] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)
    _processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig.yaml"

    @property
    def finished(self) -> bool:
        """Whether there were pods, and all have ended."""
        return bool(self._processes) and all(pod.poll() is not None for pod in self._processes.values())

    def container(self, component: str, **labels: str) -> dict[str, Any]:
        """The container of the one Job of a component, such as `run_worker` or `step_worker`, with these labels."""
        wanted = {"app.kubernetes.io/component": component} | {
            f"dagster/{name}": value for name, value in labels.items()
        }
        [job] = [each for each in self.jobs.values() if wanted.items() <= each["metadata"]["labels"].items()]
        [container] = job["spec"]["template"]["spec"]["containers"]
        return dict(container)

    def logs(self) -> str:
        """What the pods wrote."""
        return "\n".join(file.read_text(errors="replace") for file in sorted(self.folder.glob("*.log")))

    def create(self, posted: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Answer what was posted, and run the pod of a Job."""
        if reasons := refusals(posted):
            self.refused.append(reasons)
            return 422, {"kind": "Status", "apiVersion": "v1", "code": 422, "message": "; ".join(reasons)}
        name = posted["metadata"]["name"]
        match posted["kind"]:
            case "Job":
                self.jobs[name] = posted
                self._processes[name] = self._run(name, posted["spec"]["template"]["spec"]["containers"][0])
            case "Pod":
                self.pods[name] = posted
        return 201, posted

    def status(self, name: str) -> tuple[int, dict[str, Any]]:
        """Answer how a Job is doing."""
        if name not in self.jobs:
            return 404, _NOT_FOUND
        code = self._processes[name].poll()
        now = {"active": 1} if code is None else {"succeeded": 1} if code == 0 else {"failed": 1}
        return 200, {**self.jobs[name], "status": now}

    def stop(self) -> None:
        for pod in self._processes.values():
            if pod.poll() is None:
                pod.terminate()
                pod.wait(timeout=20)

    def _run(self, name: str, container: Mapping[str, Any]) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                container["args"], env=self._variables(container), stdout=log, stderr=subprocess.STDOUT
            )

    def _variables(self, container: Mapping[str, Any]) -> dict[str, str]:
        # Of this machine a pod knows only where programs are.
        found = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        for source in container.get("envFrom") or []:
            found |= self.secrets[source["secretRef"]["name"]]
        found |= {each["name"]: each["value"] for each in container.get("env") or [] if "value" in each}
        places = {each["mountPath"]: self.volumes.get(each["name"]) for each in container.get("volumeMounts") or []}
        for path, folder in places.items():
            if folder is not None:
                found = {key: value.replace(path, str(folder)) for key, value in found.items()}
        return found


@contextmanager
def small_cluster(folder: Path, **parts: Any) -> Iterator[SmallCluster]:
    """A cluster for the length of the block; pods that still run then are stopped."""
    cluster = SmallCluster(folder, **parts)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(*cluster.create(body))

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            if "watch=" in query:
                # Nothing ever happens to a pod that waits.
                self.send_response(200)
                self.end_headers()
                cluster.closing.wait()
            elif found := _JOBS.search(path):
                self._answer(*cluster.status(found["name"]))
            elif path.endswith("/pods"):
                self._answer(
                    200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [*cluster.pods.values()]}
                )
            else:
                self._answer(404, _NOT_FOUND)

        def do_DELETE(self) -> None:
            self._answer(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})

        def _answer(self, code: int, body: dict[str, Any]) -> None:
            content = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: Any) -> None:
            del args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        cluster.kubeconfig.write_text(yaml.safe_dump(_kubeconfig(server.server_port)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield cluster
        finally:
            cluster.closing.set()
            server.shutdown()
            cluster.stop()


def _kubeconfig(port: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "small",
        "contexts": [{"name": "small", "context": {"cluster": "small", "user": "nobody", "namespace": "dagster"}}],
        "clusters": [{"name": "small", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "nobody", "user": {}}],
    }
