"""A FileIO on real files that fails on request; a catalog uses it when it has the properties `FAULTY_IO`."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any, Literal, Self

from pyiceberg.io import InputFile, OutputFile, OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from support.lake import NAMESPACE, Lake
from support.place import Place

FAULTY_IO = {"py-io-impl": "support.faulty_io.FaultyFileIO"}
Stage = Literal["create", "write", "delete", "read"]


def disk_full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def broken_disk() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))


@dataclass
class Fault:
    """Goes off for the files of a pattern, from the k-th on: at their creation, first write, deletion or opening."""

    pattern: str
    error: Callable[[], BaseException]
    at: Stage = "create"
    kth: int = 1
    seen: set[str] = field(default_factory=set)

    def strike(self, location: str, stage: Stage) -> None:
        if stage == self.at and fnmatch(location, self.pattern):
            self.seen.add(location)
            if len(self.seen) >= self.kth:
                raise self.error()


FAULTS: list[Fault] = []


@contextmanager
def failing(
    pattern: str, error: Callable[[], BaseException] = disk_full, *, at: Stage = "create", kth: int = 1
) -> Iterator[Fault]:
    """Let a fault loose for a while."""
    fault = Fault(pattern, error, at, kth)
    FAULTS.append(fault)
    try:
        yield fault
    finally:
        FAULTS.remove(fault)


@contextmanager
def faulty_lake(place: Place) -> Iterator[Lake]:
    """A lake whose files can fail."""
    with closing(place.connect(**FAULTY_IO)) as catalog:
        catalog.create_namespace(NAMESPACE)
        yield Lake(place, catalog)


def _strike(location: str, stage: Stage) -> None:
    for fault in FAULTS:
        fault.strike(location, stage)


class _Stream:
    """A stream of bytes on its way to a file that may break."""

    def __init__(self, inner: OutputStream, location: str) -> None:
        self._inner, self._location = inner, location

    def write(self, data: Any) -> int:
        _strike(self._location, "write")
        return self._inner.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._inner.close()


class FaultyOutputFile(PyArrowFile):
    """A file whose creation and whose writes may fail."""

    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: FBT001, FBT002 - PyIceberg's signature
        _strike(self.location, "create")
        inner = super().create(overwrite)
        watched = any(fault.at == "write" and fnmatch(self.location, fault.pattern) for fault in FAULTS)
        return _Stream(inner, self.location) if watched else inner  # type: ignore[return-value]


class FaultyFileIO(PyArrowFileIO):
    """PyArrow's FileIO with the faults of `failing` in its way."""

    def new_output(self, location: str) -> OutputFile:
        file = super().new_output(location)
        return FaultyOutputFile(location, file._path, file._filesystem, file._buffer_size)

    def new_input(self, location: str) -> InputFile:
        _strike(location, "read")
        return super().new_input(location)

    def delete(self, location: str | Any) -> None:
        _strike(location if isinstance(location, str) else location.location, "delete")
        super().delete(location)
