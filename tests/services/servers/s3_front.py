"""What stands before rclone: it answers requests for empty "folders", which rclone cannot hold, and passes on all else.

After each deletion Arrow puts an empty object named `folder/`. Other stores keep it; rclone, whose folders
are real ones, answers with an error and then no longer finds what is in the folder.
Run as a script: `python s3_front.py PORT PORT_OF_RCLONE`.
"""

import asyncio
import re
import sys
from contextlib import suppress

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_FOLDER = re.compile(rb"PUT /[^ ?]+/ HTTP/1\.1\r\n")
_DONE = b'HTTP/1.1 200 OK\r\nETag: "d41d8cd98f00b204e9800998ecf8427e"\r\nContent-Length: 0\r\n\r\n'
_PIECE = 1 << 16


async def _requests(client: asyncio.StreamReader, answer: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
    """Pass requests on, one after the other; a client sends the next when it has the answer to the last."""
    while head := await client.readuntil(b"\r\n\r\n"):
        found = _LENGTH.search(head)
        left = int(found[1]) if found else 0
        if left == 0 and _FOLDER.match(head):
            answer.write(_DONE)
            await answer.drain()
            continue
        server.write(head)
        while left:
            piece = await client.read(min(left, _PIECE))
            if not piece:
                return
            left -= len(piece)
            server.write(piece)
            await server.drain()


async def _answers(server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
    while piece := await server.read(_PIECE):
        client.write(piece)
        await client.drain()


async def _serve(port: int, upstream: int) -> None:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", upstream)
        both = [asyncio.ensure_future(_requests(reader, writer, forth)), asyncio.ensure_future(_answers(back, writer))]
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
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
