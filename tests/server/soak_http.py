"""HTTP/1.1 over asyncio for the soak: as little work per event as possible, so that 200 clients fit beside the server they load."""
import asyncio
import json
import socket
import struct


class Broken(Exception):
    """The server closed the connection before the end of an answer."""


class Connection:
    """One connection; requests go one after another."""

    @classmethod
    async def open(cls, port):
        self = cls()
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        return self

    async def send(self, method, path, raw=b"", content_type="application/json"):
        self.writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw)
        await self.writer.drain()

    async def line(self):
        line = await self.reader.readline()
        if not line.endswith(b"\n"):
            raise Broken("end of the connection within an answer")
        return line.rstrip(b"\r\n")

    async def head(self):
        """Status and headers, names in lower case."""
        status = int((await self.line()).split()[1])
        headers = {}
        while line := await self.line():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        return status, headers

    async def pieces(self, headers):
        """The body as it comes."""
        try:
            if "content-length" in headers:
                yield await self.reader.readexactly(int(headers["content-length"]))
                return
            while size := int(await self.line(), 16):
                yield await self.reader.readexactly(size)
                await self.line()
            await self.line()
        except (asyncio.IncompleteReadError, ValueError) as e:
            raise Broken(f"cut within the body: {e}") from None

    async def body(self, headers):
        return b"".join([p async for p in self.pieces(headers)])

    async def events(self, headers):
        """What follows "data: " in each event of a stream. The last is [DONE], or says that the response or message has ended; else it was cut."""
        rest, done = b"", False
        async for piece in self.pieces(headers):
            *events, rest = (rest + piece).split(b"\n\n")
            for event in events:
                kind, _, data = event.partition(b"data: ")
                if done or not data or not (kind == b"" or kind.startswith(b"event: ")):
                    raise Broken(f"not an event: {event[:80]!r}")
                done = data == b"[DONE]" or kind in (b"event: response.completed\n", b"event: response.incomplete\n", b"event: message_stop\n")
                if data != b"[DONE]":
                    yield json.loads(data)
        if rest or not done:
            raise Broken(f"the stream ended without its last event, after {rest[:80]!r}")

    def close(self, reset=False):
        """reset: the peer gets RST in place of FIN."""
        if reset:
            self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.writer.transport.abort()
        else:
            self.writer.close()


async def ask(port, method, path, body=None):
    """(status, JSON or text, headers) over a connection of its own."""
    c = await Connection.open(port)
    try:
        await c.send(method, path, b"" if body is None else json.dumps(body).encode())
        status, headers = await c.head()
        raw = await c.body(headers)
        return status, json.loads(raw) if "json" in headers.get("content-type", "") else raw.decode(), headers
    finally:
        c.close()
