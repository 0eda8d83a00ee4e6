"""A FileIO on real files that remembers what was opened; a catalog uses it when it has the properties `READING_IO`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyiceberg.io import InputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

READING_IO = {"py-io-impl": "support.reading_io.ReadingFileIO"}
_OPENED: list[str] = []


@contextmanager
def reading() -> Iterator[list[str]]:
    """The locations that are opened from here on, in the order in which they are."""
    _OPENED.clear()
    yield _OPENED


class _ReadFile(PyArrowFile):
    def open(self, seekable: bool = True) -> InputStream:  # noqa: FBT001, FBT002 - as PyIceberg declares it
        _OPENED.append(self.location)
        return super().open(seekable)


class ReadingFileIO(PyArrowFileIO):
    """Files of the local disk."""

    def new_input(self, location: str) -> Any:
        file = super().new_input(location)
        return _ReadFile(location=file.location, path=file._path, fs=file._filesystem, buffer_size=file._buffer_size)
