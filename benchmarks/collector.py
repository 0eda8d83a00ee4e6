"""An OpenTelemetry collector that discards everything."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc  # type: ignore[import-untyped]


class _Sink(grpc.GenericRpcHandler):  # type: ignore[misc] # gRPC has no types
    def service(self, handler_call_details: Any) -> Any:
        """Respond to every call with an empty message."""
        del handler_call_details
        return grpc.unary_unary_rpc_method_handler(lambda _request, _context: b"")


@contextmanager
def open_collector() -> Iterator[str]:
    """Listen on a free local port; yield its address."""
    server = grpc.server(ThreadPoolExecutor(max_workers=2), handlers=[_Sink()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop(grace=None).wait()
