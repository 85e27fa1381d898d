"""Serving an ASGI application in the node's own event loop."""

import asyncio
import contextlib
from collections.abc import Generator
from typing import Any

import structlog
import uvicorn

from crewlet.kit.listening import ListenFailed, listen
from crewlet.web.cutoff import CutOff

GRACE_S = 5
_log = structlog.get_logger()


class _QuietServer(uvicorn.Server):
    """Leaves signals to the node."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class Server:
    """A listening server. Made by `serve`.

    Attributes:
        host, port: where it listens; the port is the real one.
        url: how this machine reaches it.
    """

    def __init__(self, host: str, port: int, server: uvicorn.Server, task: asyncio.Task[None], app: CutOff) -> None:
        self.host = host
        self.port = port
        reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        self.url = f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"
        self._server = server
        self._task = task
        self._app = app

    async def stop(self) -> None:
        """Take no more requests, let running ones finish for 5 s, then cut them off. Idempotent.

        A request whose body has not arrived is not running: a slow sender is cut off at once, with a 503.

        Cancellation: the server is told to stop and cut off at once.
        """
        self._server.should_exit = True
        if unread := self._app.stop():
            _log.info("api_requests_cut_off", requests=unread)
        done, _ = await asyncio.wait({self._task}, timeout=GRACE_S + 2)
        if not done:
            self._server.force_exit = True
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=1)


async def serve(app: Any, host: str, port: int) -> Server:
    """Listen and serve until stopped; returns once requests are taken.

    Args:
        app: an ASGI application.
        host: an address of this machine.
        port: 0 takes a free one.

    Raises:
        ListenFailed: the address is in use or not this machine's.

    Cancellation: nothing is left listening.
    """
    listening = listen(host, port)
    bounded = CutOff(app)
    config = uvicorn.Config(
        bounded,
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=GRACE_S,
    )
    server = _QuietServer(config)
    task = asyncio.get_running_loop().create_task(server.serve(sockets=[listening]), name="api")
    try:
        while not server.started and not task.done():
            await asyncio.sleep(0.005)
    except asyncio.CancelledError:
        task.cancel()
        listening.close()
        raise
    if task.done():
        listening.close()
        await task
        raise ListenFailed(f"The API could not start on {host}:{port}.")
    task.add_done_callback(lambda ended: _tell_of_end(ended, server))
    return Server(host, listening.getsockname()[1], server, task, bounded)


def _tell_of_end(task: asyncio.Task[None], server: uvicorn.Server) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        _log.error("api_failed", error=repr(error))
    elif not server.should_exit:
        _log.error("api_failed", error="the server ended by itself")
