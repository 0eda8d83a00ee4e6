"""The workers' protocol: one JSON object per line, requests on stdin, responses on stdout.

A worker times the operation itself, so neither its start nor its imports count. Standard library
only: the peer's environment has none of ours.
"""

import gc
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

Operation = Callable[..., Mapping[str, Any]]


def serve(operations: Mapping[str, Operation]) -> None:
    """Serve requests until the end of input; a failed operation ends the worker."""
    responses = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    # Other output, of Dagster or a JVM, must not be taken for a response.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        request = json.loads(line)
        # Garbage of this operation must not count for the next one.
        gc.collect()
        result = operations[request["operation"]](**request["arguments"])
        responses.write(json.dumps(result) + "\n")
        responses.flush()
