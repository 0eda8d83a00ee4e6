"""PyIceberg's Arrow FileIO for object stores, where every request takes tens of milliseconds.

Arrow asks for the length of an object before it reads it, and PyIceberg opens a client with connections of its own for
every table that it loads. Here, clients are shared by a process; an object is read with one request, by `obstore`; a
small one is written with one; and what is immutable (manifests, manifest lists, metadata files) is remembered. Files of
other FileIO classes, which `py-io-impl` may name, and of the local disk are opened as ever.
"""

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import lru_cache
from io import BytesIO
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.fs import FileSystem, LocalFileSystem, S3FileSystem
from pyiceberg import io as pyiceberg_io
from pyiceberg.io import FileIO, InputFile, OutputFile, OutputStream
from pyiceberg.io.pyarrow import BUFFER_SIZE, ONE_MEGABYTE, PyArrowFile, PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties
from pyiceberg.utils.properties import get_first_property_value, property_as_bool

PY_IO_IMPL: Final = "py-io-impl"
SMALL_FILE_BYTES: Final = 2 * 1024 * 1024
"""A data file up to this size is read as a whole: that takes no longer than another request for its footer."""
REMEMBERED_BYTES: Final = 64 * 1024 * 1024
"""How much of the manifests, manifest lists and metadata files a process remembers."""
UPLOAD_THREADS: Final = 8
BULK_DELETE: Final = 1000
"""How many objects a request may delete; more are refused by S3."""
_CLIENTS_KEPT: Final = 64
_LOCAL: Final = ("file:", "/")
# Bulk deletes name their objects in XML, and their client joins slashes and refuses some characters: anything else is
# deleted by Arrow, which takes names as they are.
_SAFE_LOCATION: Final = re.compile(r"s3[an]?://[a-z0-9.\-]+(/[A-Za-z0-9_=%+:,@~!()\-][A-Za-z0-9_.=%+:,@~!()\-]*)+")
# Settings that only Arrow's client has, or that it finds keys by.
_ONLY_ARROW: Final = ("s3.role-arn", "client.role-arn", "s3.proxy-uri", "s3.anonymous", "s3.resolve-region")
_STORAGE_KEYS: Final = ("s3.", "gcs.", "adls.", "client.", "hdfs.", "oss.", "DEFAULT_", BUFFER_SIZE)
_READ_RETRIES: Final = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}


class ObjectCache:
    """Contents of immutable objects, the least recently used of which is forgotten first."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._contents: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[str, str]) -> bytes | None:
        with self._lock:
            if (content := self._contents.get(key)) is not None:
                self._contents.move_to_end(key)
            return content

    def put(self, key: tuple[str, str], content: bytes) -> None:
        # One that fills the cache would push out all others.
        if len(content) > self._most_bytes // 4:
            return
        with self._lock:
            self._drop(key)
            self._contents[key] = content
            self._bytes += len(content)
            while self._bytes > self._most_bytes:
                self._drop(next(iter(self._contents)))

    def clear(self) -> None:
        with self._lock:
            self._contents.clear()
            self._bytes = 0

    def _drop(self, key: tuple[str, str]) -> None:
        self._bytes -= len(self._contents.pop(key, b""))


OBJECTS: Final = ObjectCache(REMEMBERED_BYTES)
"""The immutable objects that this process has read or written."""


class StoredObject(PyArrowFile):
    """A file in an object store."""

    def __init__(self, location: str, path: str, fs: FileSystem, buffer_size: int, io: "FloeFileIO") -> None:
        super().__init__(location, path, fs, buffer_size)
        self.path, self.file_system = path, fs
        self._owner, self._key = io, (io.address, location)

    def read(self) -> bytes:
        """The whole object, with one request.

        Raises:
            FileNotFoundError: There is no such object.
        """
        bucket, _, key = self.path.partition("/")
        if (client := self._owner.client(bucket)) is not None and (content := client.get(key)) is not None:
            return content
        # Arrow finds credentials in more places, and its errors are those that are translated.
        with self.open() as stream:
            return bytes(stream.read())

    def read_immutable(self) -> bytes:
        """The whole object, from memory if this process has read or written it before."""
        if (content := OBJECTS.get(self._key)) is None:
            content = self.read()
            OBJECTS.put(self._key, content)
        return content

    def write_immutable(self, content: bytes) -> None:
        """Write the whole object and remember it."""
        bucket, _, key = self.path.partition("/")
        if (client := self._owner.client(bucket)) is None or not client.put(key, content):
            with self.create(overwrite=True) as stream:
                stream.write(content)
        OBJECTS.put(self._key, content)

    def fragment(self, file_format: ds.FileFormat, size_bytes: int) -> ds.FileFragment:
        """The file for Arrow's scanner, which reads the footer of a large one, and then the columns it needs."""
        if size_bytes <= SMALL_FILE_BYTES:
            return file_format.make_fragment(pa.py_buffer(self.read()))
        return file_format.make_fragment(self.path, filesystem=self.file_system, file_size=size_bytes)


class FloeFileIO(PyArrowFileIO):
    """PyIceberg's Arrow FileIO, with clients that are shared by all of its instances in a process.

    Its files take requests, so it pays to read or write several at a time.
    """

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)
        self._storage = tuple(sorted((k, str(v)) for k, v in properties.items() if k.startswith(_STORAGE_KEYS)))
        self.new_file_system, self.fs_by_scheme = self.fs_by_scheme, self._shared_file_system

    @property
    def address(self) -> str:
        """What distinguishes two stores with the same names in them."""
        return "|".join(
            str(self.properties.get(key, ""))
            for key in (pyiceberg_io.S3_ENDPOINT, "gcs.service.host", "adls.account-name")
        )

    def new_input(self, location: str) -> PyArrowFile:
        stored = self._stored(location)
        return super().new_input(location) if stored is None else stored

    def new_output(self, location: str) -> PyArrowFile:
        stored = self._stored(location)
        return super().new_output(location) if stored is None else stored

    def delete_in_bulk(self, locations: Sequence[str]) -> list[str]:
        """Delete files with a request for each thousand; returns those that have to be deleted one by one.

        These are the files of a request that failed or refused some of them, some of which are gone already, and those
        whose names might become others on their way to the store.
        """
        keys: dict[str, dict[str, str]] = {}
        for location in locations:
            if _SAFE_LOCATION.fullmatch(location) and isinstance(stored := self._stored(location), StoredObject):
                bucket, _, key = stored.path.partition("/")
                keys.setdefault(bucket, {})[location] = key
        deleted: set[str] = set()
        for bucket, by_location in keys.items():
            client, of_bucket = self.client(bucket), list(by_location)
            for start in range(0, len(of_bucket), BULK_DELETE):
                batch = of_bucket[start : start + BULK_DELETE]
                if client is not None and client.delete([by_location[each] for each in batch]):
                    deleted.update(batch)
        return [location for location in locations if location not in deleted]

    def client(self, bucket: str) -> "BucketClient | None":
        """The client for whole objects of a bucket; None where only Arrow has access."""
        return _bucket_client(os.getpid(), bucket, self._storage)

    def _stored(self, location: str) -> StoredObject | None:
        scheme, netloc, path = self.parse_location(location, self.properties)
        file_system = self.fs_by_scheme(scheme, netloc)
        if isinstance(file_system, LocalFileSystem):
            return None
        return StoredObject(location, path, file_system, int(self.properties.get(BUFFER_SIZE, ONE_MEGABYTE)), self)

    def _shared_file_system(self, scheme: str, netloc: str | None) -> FileSystem:
        # The connections of a parent process cannot be shared.
        return _file_system(os.getpid(), scheme, netloc, self._storage)

    def _initialize_s3_fs(self, netloc: str | None) -> FileSystem:
        client = super()._initialize_s3_fs(netloc)
        if pyiceberg_io.S3_RETRY_STRATEGY_IMPL in self.properties:
            return client
        # What a client is pickled as are the arguments that it was made of, but for a strategy of the user's.
        _, (arguments,) = client.__reduce__()
        # An upload begins when the first part is full, so that a small file is one request instead of three.
        return S3FileSystem(**{**arguments, "allow_delayed_open": True})

    def __reduce__(self) -> tuple[type["FloeFileIO"], tuple[Properties]]:
        return FloeFileIO, (self.properties,)


@lru_cache(_CLIENTS_KEPT)
def _file_system(pid: int, scheme: str, netloc: str | None, storage: tuple[tuple[str, str], ...]) -> FileSystem:
    del pid
    return FloeFileIO(dict(storage)).new_file_system(scheme, netloc)


def forget_all() -> None:
    """Forget clients and objects, as if the process were new."""
    OBJECTS.clear()
    _file_system.cache_clear()
    _bucket_client.cache_clear()


def with_shared_clients(io: FileIO, location: str | None) -> FileIO:
    """Ours in place of PyIceberg's Arrow FileIO, unless its properties name a class, or the files are on a disk."""
    is_local = location is not None and location.startswith(_LOCAL)
    replaces = type(io) is PyArrowFileIO and PY_IO_IMPL not in io.properties and not is_local
    return FloeFileIO(io.properties) if replaces else io


_FIRST_PROCESS: Final = os.getpid()


class BucketClient:
    """Reads and writes whole objects of a bucket with one request each, any number of them side by side.

    Arrow's client does neither: it asks for the length first, and opens its second and further connections only when
    the first request has ended.
    """

    def __init__(self, bucket: str, arguments: dict[str, Any]) -> None:
        # Loaded with the first store, not with the package.
        from obstore.store import S3Store  # noqa: PLC0415

        self._bucket, self._store = bucket, S3Store(bucket, **arguments)

    def get(self, key: str) -> bytes | None:
        """The content of an object; None if Arrow has to try.

        Raises:
            FileNotFoundError: There is no such object.
        """
        try:
            return bytes(self._store.get(key).bytes())
        except FileNotFoundError:
            # Not chained: the message holds the server's response.
            raise FileNotFoundError(f"Cannot open file, does not exist: s3://{self._bucket}/{key}") from None
        except self._failures:
            return None

    def put(self, key: str, content: bytes) -> bool:
        """Whether an object was written; if not, Arrow has to try."""
        try:
            self._store.put(key, content, use_multipart=False)
        except self._failures:
            return False
        return True

    def delete(self, keys: list[str]) -> bool:
        """Whether objects, at most `BULK_DELETE`, are gone; if not, some may be, and Arrow has to try all of them."""
        try:
            self._store.delete(keys)
        except self._failures:
            return False
        return True

    @property
    def _failures(self) -> tuple[type[Exception], ...]:
        """Refused, broken off, or a key that it does not take."""
        from obstore.exceptions import BaseError  # noqa: PLC0415

        return BaseError, ValueError, OSError


@lru_cache(_CLIENTS_KEPT)
def _bucket_client(pid: int, bucket: str, storage: tuple[tuple[str, str], ...]) -> BucketClient | None:
    properties = dict(storage)
    if pid != _FIRST_PROCESS or any(key in properties for key in _ONLY_ARROW):
        # The threads of its runtime do not survive a fork.
        return None
    arguments = _arguments_of_store(properties)
    return None if arguments is None else BucketClient(bucket, arguments)


def _arguments_of_store(properties: dict[str, str]) -> dict[str, Any] | None:
    """Arguments of a store with keys from the properties; None if Arrow has to look for keys elsewhere."""
    key = get_first_property_value(properties, pyiceberg_io.S3_ACCESS_KEY_ID, pyiceberg_io.AWS_ACCESS_KEY_ID)
    secret = get_first_property_value(properties, pyiceberg_io.S3_SECRET_ACCESS_KEY, pyiceberg_io.AWS_SECRET_ACCESS_KEY)
    region = get_first_property_value(properties, pyiceberg_io.S3_REGION, pyiceberg_io.AWS_REGION)
    if not (key and secret and region):
        return None
    endpoint, token = (
        properties.get(pyiceberg_io.S3_ENDPOINT),
        get_first_property_value(properties, pyiceberg_io.S3_SESSION_TOKEN, pyiceberg_io.AWS_SESSION_TOKEN),
    )
    client = {"allow_http": True, "timeout": f"{float(properties.get(pyiceberg_io.S3_REQUEST_TIMEOUT, 60)):g}s"}
    client["connect_timeout"] = f"{float(properties.get(pyiceberg_io.S3_CONNECT_TIMEOUT, 10)):g}s"
    virtual = property_as_bool(properties, pyiceberg_io.S3_FORCE_VIRTUAL_ADDRESSING, endpoint is None)
    given = {"endpoint": endpoint, "session_token": token}
    return {
        **{name: value for name, value in given.items() if value},
        "access_key_id": key,
        "secret_access_key": secret,
        "region": region,
        "virtual_hosted_style_request": virtual,
        "client_options": client,
        "retry_config": _READ_RETRIES,
    }


class Uploads(FileIO):
    """Immutable objects that are written side by side, while the next of them is put together."""

    def __init__(self, io: FileIO) -> None:
        super().__init__(io.properties)
        self._io, self._pool = io, ThreadPoolExecutor(UPLOAD_THREADS, thread_name_prefix="floe-upload")
        self._pending: list[Future[None]] = []

    def new_input(self, location: str) -> InputFile:
        return self._io.new_input(location)

    def new_output(self, location: str) -> OutputFile:
        return _Upload(location, self._start)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self._io.delete(location)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait until everything is written, or has failed; only then may files be deleted."""
        self._pool.shutdown()
        if kind is None:
            for upload in self._pending:
                upload.result()

    def _start(self, location: str, content: bytes) -> None:
        self._pending.append(self._pool.submit(_write_immutable, self._io.new_output(location), content))


def _write_immutable(file: OutputFile, content: bytes) -> None:
    if isinstance(file, StoredObject):
        file.write_immutable(content)
        return
    with file.create(overwrite=True) as stream:
        stream.write(content)


class _Upload(OutputFile):
    """A file that is put together in memory, and uploaded when it is closed."""

    def __init__(self, location: str, start: Callable[[str, bytes], None]) -> None:
        super().__init__(location)
        self._start = start

    def __len__(self) -> int:
        raise OSError(f"The length of {self.location} is known to its writer")

    def exists(self) -> bool:
        return False

    def to_input_file(self) -> InputFile:
        raise OSError(f"{self.location} is still being written")

    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: FBT001, FBT002 - PyIceberg's signature
        del overwrite
        return _UploadStream(self.location, self._start)


class _UploadStream:
    def __init__(self, location: str, start: Callable[[str, bytes], None]) -> None:
        self._location, self._start = location, start
        self._content = BytesIO()

    def write(self, b: bytes) -> int:
        return self._content.write(b)

    def tell(self) -> int:
        return self._content.tell()

    def close(self) -> None:
        if not self._content.closed:
            self._start(self._location, self._content.getvalue())
            self._content.close()

    def __enter__(self) -> OutputStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
