"""What stands before rclone, whose folders are real ones, and makes up for that.

It responds to requests for empty "folders" itself: after each deletion Arrow puts an object named `folder/`, and
rclone would respond with an error and then no longer find what is in the folder. It makes the folders of objects
to come, one after the other: two first objects of a folder at once, and rclone loses one of them.
Run as a script: `python s3_front.py PORT PORT_OF_RCLONE PORT_OF_ITS_CONTROL FOLDER_OF_RCLONE`.
"""

import asyncio
import re
import sys
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlencode

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_FOLDER = re.compile(rb"PUT /[^ ?]+/ HTTP/1\.1\r\n")
_OBJECT = re.compile(rb"(?:PUT|POST) /(?P<bucket>[^ ?/]+)/(?P<folder>[^ ?]+)/[^ ?/]+[ ?]")
_DONE = b'HTTP/1.1 200 OK\r\nETag: "d41d8cd98f00b204e9800998ecf8427e"\r\nContent-Length: 0\r\n\r\n'
_PIECE = 1 << 16


class Folders:
    """The folders behind rclone. rclone caches listings, so it has to forget the parent of each folder that is made."""

    def __init__(self, root: Path, control: int) -> None:
        self._root, self._control = root, control
        self._lock = asyncio.Lock()

    async def make_for(self, head: bytes) -> None:
        """Make the folder of the object that a request is about to put."""
        found = _OBJECT.match(head)
        if found is None or not (bucket := self._root / found["bucket"].decode()).is_dir():
            return
        folder = bucket / unquote(found["folder"].decode())
        async with self._lock:
            if not folder.is_dir():
                known = next(parent for parent in folder.parents if parent.is_dir())
                folder.mkdir(parents=True, exist_ok=True)
                await self._forget(known)

    async def _forget(self, folder: Path) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._control)
        query = urlencode({"dir": str(folder.relative_to(self._root))})
        writer.write(f"POST /vfs/forget?{query} HTTP/1.0\r\nContent-Length: 0\r\n\r\n".encode())
        await reader.read()
        writer.close()


async def _requests(
    client: asyncio.StreamReader, response: asyncio.StreamWriter, server: asyncio.StreamWriter, folders: Folders
) -> None:
    """Pass requests on, one after the other; a client sends the next when it has the response to the last."""
    while head := await client.readuntil(b"\r\n\r\n"):
        found = _LENGTH.search(head)
        left = int(found[1]) if found else 0
        if left == 0 and _FOLDER.match(head):
            response.write(_DONE)
            await response.drain()
            continue
        await folders.make_for(head)
        server.write(head)
        while left:
            piece = await client.read(min(left, _PIECE))
            if not piece:
                return
            left -= len(piece)
            server.write(piece)
            await server.drain()


async def _responses(server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
    while piece := await server.read(_PIECE):
        client.write(piece)
        await client.drain()


async def _serve(port: int, upstream: int, folders: Folders) -> None:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", upstream)
        forwards, backwards = _requests(reader, writer, forth, folders), _responses(back, writer)
        both = [asyncio.ensure_future(forwards), asyncio.ensure_future(backwards)]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task in both:
            task.cancel()
            with suppress(asyncio.CancelledError, asyncio.IncompleteReadError, OSError):
                await task
        for end in (forth, writer):
            end.close()

    server = await asyncio.start_server(connect, "127.0.0.1", port, limit=_PIECE)
    await server.serve_forever()


if __name__ == "__main__":
    own, of_rclone, of_control = (int(port) for port in sys.argv[1:4])
    asyncio.run(_serve(own, of_rclone, Folders(Path(sys.argv[4]), of_control)))
