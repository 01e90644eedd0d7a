"""A keep-alive connection on asyncio's streams. Cheaper than http.client, so one thread can saturate a server."""
import asyncio
import json


def head_of(path, body):
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n").encode()


class Connection:
    """Connects at the first request, and reconnects after close() or when the server has closed it."""

    def __init__(self, port):
        self.port, self.reader, self.writer = port, None, None

    def close(self):
        if self.writer:
            self.writer.close()
        self.reader = self.writer = None

    async def post(self, path, body):
        """Status and bytes of the reply."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        if self.writer and self.reader.at_eof():  # the server has closed an idle connection
            self.close()
        if not self.writer:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 22)
        self.writer.write(head_of(path, data) + data)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        if "transfer-encoding: chunked" in head:
            reply = joined(await self.reader.readuntil(b"\r\n0\r\n\r\n"))
        else:
            reply = await self.reader.readexactly(int(head.split("content-length: ")[1].split("\r\n")[0]))
        if "connection: close" in head:
            self.close()
        return int(head.split(" ", 2)[1]), reply


def joined(chunks):
    """Decodes a chunked body."""
    pieces, at = [], 0
    while True:
        end = chunks.index(b"\r\n", at)
        size = int(chunks[at:end], 16)
        if size == 0:
            return b"".join(pieces)
        pieces.append(chunks[end + 2:end + 2 + size])
        at = end + 4 + size
