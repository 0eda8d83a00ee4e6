"""What kept an HTTP request from being answered, in a few words that begin with the address."""

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

# By what the class names of requests, urllib3 and Python contain; the first that is found in the chain tells most.
_WORDS: Final = {
    "NameResolutionError": "has a host name that is not known here",
    "gaierror": "has a host name that is not known here",
    "ConnectionRefusedError": "refused the connection",
    "ConnectTimeout": "did not take the connection in time",
    "ReadTimeout": "did not answer in time",
    "SSLError": "cannot be trusted: its certificate or protocol was not accepted",
    "ProxyError": "cannot be reached through the proxy",
    "RemoteDisconnected": "closed the connection without an answer",
    "ConnectionResetError": "closed the connection without an answer",
    "IncompleteRead": "broke off in the middle of its answer",
    "ChunkedEncodingError": "broke off in the middle of its answer",
    "NewConnectionError": "cannot be connected to",
}


def describe_http_failure(error: BaseException) -> str | None:
    """The server and what it did, as in 'http://catalog:8181 refused the connection'; None when that is not known.

    Of the address only scheme, host and port: the rest may hold what nobody else is to read.
    """
    url = getattr(getattr(error, "request", None), "url", None)
    if not isinstance(url, str):
        return None
    kinds = [type(cause).__name__ for cause in _chain(error)]
    words = next((words for name, words in _WORDS.items() if any(name in kind for kind in kinds)), None)
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return None if words is None else f"{parts.scheme}://{parts.hostname}{port} {words}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and all that led to it; requests and urllib3 hand theirs on as arguments."""
    waiting, seen = [error], set[int]()
    while waiting:
        current = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        linked = (current.__cause__, current.__context__, getattr(current, "reason", None), *current.args)
        waiting += [each for each in linked if isinstance(each, BaseException)]
