"""What a worker speaks: one JSON object a line, a request on its input, an answer on its output.

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
    """Answer requests until there are no more; an operation that fails ends the worker."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    # Whatever else is printed here, by Dagster or a JVM, must not look like an answer.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        request = json.loads(line)
        # Whoever comes next shall not clean up after the one before.
        gc.collect()
        answer = operations[request["operation"]](**request["arguments"])
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
