"""Files in storage listed, moved and deleted, through the filesystem of a table's FileIO.

A FileIO cannot list or move files. Its filesystem can, with the same credentials and settings.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlparse

from pyarrow.fs import FileSelector, FileType
from pyiceberg.io import FileIO
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from floe_dagster_iceberg._pyiceberg.file_io import FloeFileIO
from floe_dagster_iceberg._pyiceberg.metadata_errors import is_cut_off
from floe_dagster_iceberg.errors import EngineCapabilityError

# Object stores take tens of milliseconds per request, and many at a time.
PARALLEL_REQUESTS: Final = 8
# Different schemes for the same storage; Spark and PyIceberg do not use the same ones.
_SCHEMES: Final = {"": "file", "s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "wasbs": "wasb"}
_MODIFIED_KEYS: Final = ("mtime", "LastModified", "last_modified", "updated", "created")


@dataclass(frozen=True)
class StoredFile:
    """A file in a listing; `modified_at` is None if the storage does not report it."""

    location: str
    size_bytes: int
    modified_at: datetime | None = None


@dataclass(frozen=True)
class FileLocation:
    """A parsed location: two spellings of the same one are equal."""

    scheme: str
    authority: str
    path: str

    @classmethod
    def of(cls, location: str) -> "FileLocation":
        """Parse a location; a bare path is a local file."""
        scheme, colon, rest = location.partition(":")
        if not colon or "/" in scheme:
            scheme, rest = "file", location
        scheme = _SCHEMES.get(scheme, scheme)
        # Hadoop writes file:/path, PyIceberg file:///path.
        authority, _, path = rest.removeprefix("//").partition("/") if rest.startswith("//") else ("", "", rest)
        if scheme == "file":
            authority, path = authority.removeprefix("localhost"), path.lstrip("/")
        return cls(scheme, authority, "/" + path.rstrip("/"))

    def contains(self, other: "FileLocation") -> bool:
        """Whether the other location is this one or below it."""
        if (self.scheme, self.authority) != (other.scheme, other.authority):
            return False
        return other.path == self.path or other.path.startswith(self.path.rstrip("/") + "/")


def list_files(io: FileIO, location: str) -> list[StoredFile]:
    """All files below a location, unordered; none if it does not exist.

    Raises:
        EngineCapabilityError: The FileIO cannot list files.
    """
    root = location.rstrip("/")
    match io:
        case PyArrowFileIO() if is_cut_off(root):
            # Files of other tables would be listed.
            raise EngineCapabilityError(
                f"Files below '{root}' cannot be listed: PyIceberg ends paths at '?' and '#'.", engine="pyiceberg"
            )
        case PyArrowFileIO():
            scheme, authority, path = io.parse_location(root, io.properties)
            filesystem = io.fs_by_scheme(scheme, authority)
            found = filesystem.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
            return [
                StoredFile(f"{root}/{info.path[len(path) :].lstrip('/')}", info.size, info.mtime)
                for info in found
                if info.type == FileType.File
            ]
        case FsspecFileIO():
            filesystem, path = _fsspec(io, root)
            listed: Mapping[str, Mapping[str, Any]] = filesystem.find(path, detail=True)
            return [
                StoredFile(f"{root}/{name[len(path) :].lstrip('/')}", int(info["size"] or 0), _modified_at(info))
                for name, info in listed.items()
            ]
        case _:
            raise _unsupported(io, "listed")


def move_file(io: FileIO, source: str, target: str) -> None:
    """Move a file within one storage.

    Raises:
        FileNotFoundError: There is no such file.
        EngineCapabilityError: The FileIO cannot move files.
    """
    match io:
        case PyArrowFileIO():
            scheme, authority, path = io.parse_location(source, io.properties)
            target_path = io.parse_location(target, io.properties)[2]
            filesystem = io.fs_by_scheme(scheme, authority)
            filesystem.create_dir(target_path.rpartition("/")[0], recursive=True)
            filesystem.move(path, target_path)
        case FsspecFileIO():
            filesystem, path = _fsspec(io, source)
            _, target_path = _fsspec(io, target)
            filesystem.makedirs(target_path.rpartition("/")[0], exist_ok=True)
            filesystem.mv(path, target_path)
        case _:
            raise _unsupported(io, "moved")


def _unsupported(io: FileIO, verb: str) -> EngineCapabilityError:
    return EngineCapabilityError(
        f"Files cannot be {verb} through {type(io).__name__}. Use PyArrowFileIO or FsspecFileIO "
        "(catalog property py-io-impl).",
        engine="pyiceberg",
    )


def delete_files(io: FileIO, locations: Sequence[str]) -> list[str]:
    """Delete as many files as possible; returns those that are left."""
    left: list[str] = []
    for location in locations:
        try:
            io.delete(location)
        except FileNotFoundError:
            continue
        except OSError:
            left.append(location)
    return left


def delete_many(io: FileIO, locations: Sequence[str]) -> list[str]:
    """Delete as many files as possible, in bulk where the storage can; returns those that are left."""
    if len(locations) > 1 and isinstance(io, FloeFileIO):
        # What is gone already is not an error, so that all files of a request that failed can be tried again.
        locations = io.delete_in_bulk(locations)

    def delete(location: str) -> list[str]:
        left = delete_files(io, [location])
        if FileLocation.of(location).scheme == "file":
            # Hadoop writes a checksum file beside each local file; it is not worth reporting.
            folder, _, name = location.rpartition("/")
            delete_files(io, [f"{folder}/.{name}.crc"])
        return left

    return [left for each in in_parallel(delete, locations) for left in each]


def in_parallel(work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
    """The results of a function for each item, several at a time, in the order of the items."""
    with ThreadPoolExecutor(max_workers=PARALLEL_REQUESTS) as threads:
        yield from threads.map(work, items)


def _fsspec(io: FsspecFileIO, location: str) -> tuple[Any, str]:
    uri = urlparse(location)
    filesystem = io.get_fs(uri.scheme or "file", uri.hostname if uri.scheme.startswith(("abfs", "wasb")) else None)
    return filesystem, str(filesystem._strip_protocol(location))  # noqa: SLF001 - fsspec's own way, used by its plugins


def _modified_at(info: Mapping[str, Any]) -> datetime | None:
    said = next((info[key] for key in _MODIFIED_KEYS if info.get(key) is not None), None)
    match said:
        case datetime():
            return said if said.tzinfo is not None else said.replace(tzinfo=UTC)
        case int() | float():
            return datetime.fromtimestamp(said, tz=UTC)
        case str():
            return datetime.fromisoformat(said)
        case _:
            return None
