"""starlette and uvicorn: the server of `treeviz serve`."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import webbrowser
from base64 import b64encode
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from treeviz.tree.text import error_text
from treeviz.views.html.bundle import script

POLL_S, _MOST_PER_S = 0.25, 1 << 25  # between two looks at the file of a run; bytes for all its pages
MOST_WAITING = 1 << 22  # bytes of events for a page that does not read them
_PIECE = 1 << 16  # bytes that are sent at once, so that no more of an event waits in a socket
MOST_OPEN = 8  # items
_KEYS = "/{key:path}", ""  # of an item; of two, in the query
_PORT, _N_PORTS = 8710, 50
_LONGEST_REQUEST = 1 << 16  # bytes
_REQUEST_WITHIN_S = 10.0
_ALIVE_S = 15.0  # between two signs of life of an event stream, by which a closed one is noticed
# Everything comes from this server; the front end sets styles of elements, and makes pictures for downloads.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; img-src data: blob:; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Connection": "close",  # so that each connection has one request, and a time for it
}


class Item(Protocol):
    """A run or a checkpoint: `treeviz.inspector.served`. Called from a thread."""

    def poll(self) -> str: ...
    def content(self) -> bytes: ...
    def answer(self, content: Any) -> tuple[dict[str, Any], list[bytes]] | None: ...
    def close(self) -> None: ...


class Site(Protocol):
    """What is served: `treeviz.cli.serve.Site`. Called from a thread."""

    def items(self) -> list[dict[str, Any]]: ...
    def open(self, key: str | tuple[str, str], publish: Any) -> Item: ...


class Stream:
    """The events that wait for a page: some, which all pages share, or only that it missed them and is to read all."""

    def __init__(self) -> None:
        self._events: deque[bytes] = deque()
        self._n_bytes = 0
        self._is_new = asyncio.Event()

    def put(self, event: bytes) -> None:
        """Add an event; b"" ends the stream."""
        if _MISSED in self._events and event:
            return
        if event and self._events and self._n_bytes + len(event) > MOST_WAITING:
            self._events.clear()
            event = _MISSED
        self._events.append(event)
        self._n_bytes = sum(map(len, self._events))
        self._is_new.set()

    async def get(self) -> bytes:
        await self._is_new.wait()
        event = self._events.popleft()
        self._n_bytes -= len(event)
        if not self._events:
            self._is_new.clear()
        return event


class _Channel:
    """An open item and the event streams of the pages that show it."""

    def __init__(self) -> None:
        self.item: Item | None = None
        self.opening = asyncio.Lock()
        self.streams: set[Stream] = set()
        self.polling: asyncio.Task[None] | None = None
        self._n_sent = 0  # bytes, since the last look at the file
        self._loop = asyncio.get_running_loop()

    def publish(self, kind: str, content: Mapping[str, Any], buffers: Sequence[bytes]) -> None:
        """Send an event to all pages; from any thread."""
        if self.streams:
            self._loop.call_soon_threadsafe(self.put, _event(kind, _message(content, buffers)))

    def put(self, event: bytes) -> None:
        self._n_sent += len(event) * len(self.streams)
        for stream in self.streams:
            stream.put(event)

    async def poll(self) -> None:
        """Read what is new, as long as a page shows the item."""
        before = ""
        while self.streams and self.item is not None:
            trouble = await run_in_threadpool(self.item.poll)
            if trouble != before:
                self.publish("trouble", {"text": trouble}, ())
            before = trouble
            await asyncio.sleep(max(POLL_S, self._n_sent / _MOST_PER_S))
            self._n_sent = 0


def _message(content: Mapping[str, Any], buffers: Sequence[bytes]) -> dict[str, Any]:
    return {"content": content, "buffers": [b64encode(buffer).decode() for buffer in buffers]}


def _event(kind: str, data: Any) -> bytes:
    """An event of https://html.spec.whatwg.org/multipage/server-sent-events.html; JSON has no line breaks."""
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()


_MISSED = _event("missed", {})


class Pages:
    """The handlers of the server."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._channels: OrderedDict[str | tuple[str, str], _Channel] = OrderedDict()

    def end(self) -> None:
        for channel in self._channels.values():
            channel.put(b"")

    async def page(self, request: Request) -> Response:
        return HTMLResponse(_PAGE, headers={"Content-Security-Policy": _POLICY})

    async def script(self, request: Request) -> Response:
        bundle = {"site.js": "site", "explorer.js": "widget"}.get(request.path_params["name"])
        if bundle is None:
            raise HTTPException(404)
        return Response(script(bundle), media_type="text/javascript", headers={"Cache-Control": "no-cache"})

    async def list(self, request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(self._site.items))

    async def tree(self, request: Request) -> Response:
        channel = await self._channel(request)
        assert channel.item is not None
        return Response(await run_in_threadpool(channel.item.content), media_type="application/octet-stream")

    async def ask(self, request: Request) -> Response:
        if request.headers.get("content-type") != "application/json":
            raise HTTPException(415)
        channel, body = await self._channel(request), b""
        async for part in request.stream():
            body += part
            if len(body) > _LONGEST_REQUEST:
                raise HTTPException(413)
        assert channel.item is not None
        try:
            answer = await run_in_threadpool(channel.item.answer, json.loads(body))
        except (ValueError, RecursionError) as error:
            raise HTTPException(400, str(error)) from None
        return Response(status_code=204) if answer is None else JSONResponse(_message(*answer))

    async def events(self, request: Request) -> Response:
        channel = await self._channel(request)
        return StreamingResponse(self._stream(channel), media_type="text/event-stream")

    async def _stream(self, channel: _Channel) -> AsyncIterator[bytes]:
        stream = Stream()
        channel.streams.add(stream)
        if channel.polling is None or channel.polling.done():
            channel.polling = asyncio.create_task(channel.poll())
        try:
            yield b": hello\n\n"
            while True:
                try:
                    event = await asyncio.wait_for(stream.get(), _ALIVE_S)
                except TimeoutError:
                    event = b": alive\n\n"
                if not event:
                    return
                for start in range(0, len(event), _PIECE):
                    yield event[start : start + _PIECE]
        finally:
            channel.streams.discard(stream)

    async def _channel(self, request: Request) -> _Channel:
        """The channel of an item, opened if it is not; then one that no page shows is closed, if there are many."""
        left, right = (request.query_params.get(name, "") for name in ("left", "right"))
        key = request.path_params.get("key", (left, right))
        if key not in self._channels:
            self._channels[key] = _Channel()
        channel = self._channels[key]
        async with channel.opening:
            if channel.item is None:
                try:
                    channel.item = await run_in_threadpool(self._site.open, key, channel.publish)
                except Exception as error:  # of a broken file
                    self._channels.pop(key, None)
                    if isinstance(error, KeyError):
                        raise HTTPException(404, "There is no such run or checkpoint.") from None
                    raise HTTPException(422, error_text(error)) from None
        self._channels[key] = channel  # another request may have taken it out meanwhile
        self._channels.move_to_end(key)
        idle = [key for key, other in self._channels.items() if not other.streams and other is not channel]
        for key in idle[: max(0, len(self._channels) - MOST_OPEN)]:
            item = self._channels.pop(key).item
            if item is not None:
                await run_in_threadpool(item.close)
        return channel


class _Guard:
    """Lets in who has the token, from pages of this server, under a name of this machine."""

    def __init__(self, app: ASGIApp, token: str, cookie: str) -> None:
        self._app, self._token, self._cookie = app, token, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                added = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *(header for header in added if header[0] not in given)]
            await send(message)

        await (self._refusal(Request(scope)) or self._app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        # Another name is one that another site gave to this address (DNS rebinding). ssh -L may forward another port.
        if host.rpartition(":")[0] not in ("127.0.0.1", "localhost"):
            return PlainTextResponse("This server answers at 127.0.0.1 and localhost only.", 403)
        is_of_other_site = request.headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if origin not in (None, f"http://{host}") or is_of_other_site:
            return PlainTextResponse("This server answers its own pages only.", 403)
        given = request.query_params.get("token")
        if given is not None and _same(given, self._token):
            rest = urlencode([pair for pair in parse_qsl(request.url.query) if pair[0] != "token"])
            response = Response(status_code=303, headers={"Location": request.url.path + ("?" + rest if rest else "")})
            response.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", max_age=30 * 86400)
            return response
        if not _same(request.cookies.get(self._cookie, ""), self._token):
            return PlainTextResponse("Open the address that treeviz serve has printed: it ends with a token.", 403)
        return None


def _same(given: str, token: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "replace"), token.encode())


def make_app(pages: Pages, token: str, port: int) -> ASGIApp:
    """The application: what the requests of the pages reach."""
    routes = [
        Route("/", pages.page),
        Route("/list", pages.list),
        Route("/two", pages.page),
        Route("/assets/{name}", pages.script),
        Route("/at/{key:path}", pages.page),
        *(Route(f"/tree{of}", pages.tree) for of in _KEYS),
        *(Route(f"/events{of}", pages.events) for of in _KEYS),
        *(Route(f"/ask{of}", pages.ask, methods=["POST"]) for of in _KEYS),
    ]
    return _Guard(Starlette(routes=routes), token, f"treeviz-{port}")


class _Protocol(H11Protocol):
    """Ends a connection whose request does not come."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[bad-override]
        super().connection_made(transport)
        self.loop.call_later(_REQUEST_WITHIN_S, lambda: self.cycle is None and transport.close())


class Server(uvicorn.Server):
    """A server that ends its event streams when it ends, which would not end by themselves."""

    def __init__(self, site: Site, token: str, port: int) -> None:
        self._pages = Pages(site)
        how: dict[str, Any] = {"http": _Protocol, "log_level": "warning", "access_log": False, "server_header": False}
        app = make_app(self._pages, token, port)
        super().__init__(uvicorn.Config(app, lifespan="off", timeout_graceful_shutdown=2, **how))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._pages.end()
        await super().shutdown(sockets)


def serve(site: Site, port: int | None, token: str, *, opens: bool, say: Callable[[str], None]) -> None:
    """Serve until the user ends it (Ctrl-C); raises OSError if the port is not free."""
    listening = listening_socket(port)
    site.items()  # the first list takes longer
    port = int(listening.getsockname()[1])
    url = f"http://127.0.0.1:{port}/?token={token}"
    say(f"Serving at {url}\nCtrl-C ends it. From another machine: ssh -L {port}:127.0.0.1:{port} HOST")
    if opens:
        webbrowser.open(url)
    Server(site, token, port).run(sockets=[listening])


def listening_socket(port: int | None) -> socket.socket:
    ports = range(_PORT, _PORT + _N_PORTS) if port is None else (port,)
    for each in ports:
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", each))
            listening.listen()  # who comes before the server waits for it
        except OSError:
            listening.close()
            if each == ports[-1]:
                raise
        else:
            return listening
    raise AssertionError


_PAGE = """<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>treeviz</title><style>:root{color-scheme:light dark}</style><link rel="icon" href="data:,">
<main></main><noscript>This page needs JavaScript.</noscript>
<script type="module" src="/assets/site.js"></script></html>
"""
