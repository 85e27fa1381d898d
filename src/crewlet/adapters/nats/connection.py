"""The one connection of a node to its broker: brought up with a bound, kept for ever, refused in one sentence.

Nothing is buffered while it is down: whoever asks is told so at once, and decides again when it is back.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Literal, Self, TypeVar

import msgspec
import structlog
from nats import errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from crewlet.adapters.nats.address import (
    BrokerAddress,
    certificate_refused,
    check_can_sign,
    check_readable,
    check_urls,
    not_let_in,
    not_trusted,
    spoken,
    tls_context,
    without_tls,
)
from crewlet.adapters.nats.link import Link, NoTls, encode_headers
from crewlet.adapters.nats.translate import (
    JETSTREAM_DISABLED,
    AccountAnswer,
    Answer,
    BrokerUnfit,
    NobodyThere,
    NothingThere,
    too_large,
)
from crewlet.kit import decoding
from crewlet.ports.clock import Clock
from crewlet.ports.errors import NotLive, NotTaken, Unavailable

OLDEST_BROKER = (2, 11)
API_TIMEOUT_S = 5.0

_SAY_SO_EVERY_S = 10.0
_CLOSE_TIMEOUT_S = 2.0
_REFUSALS_FOR_GOOD = 3
"""As many in a row, and a person has to do something: the first may be of a server that is being set up anew."""
_AUTH_REFUSALS = ("authorization violation", "authentication expired", "authentication revoked")

__all__ = ["API_TIMEOUT_S", "BrokerAddress", "Connection", "State", "decode"]

State = Literal["connected", "disconnected", "closed"]
A = TypeVar("A", bound=Answer)

_log = structlog.get_logger()


class Connection:
    """A live connection. Made by `open`, ended by `close`.

    Attributes:
        links: how often it was lost and came up again.
    """

    def __init__(self, address: BrokerAddress, *, clock: Clock, replicas: int, bring_up_s: float) -> None:
        self.clock = clock
        self.replicas = replicas
        self.bring_up_s = bring_up_s
        self._address = address
        self._link = Link(needs_tls=address.needs_tls)
        self._listeners: list[Callable[[State], None]] = []
        self.links = 0
        self._is_closing = False
        self._last_error: Exception | None = None
        self._refusals = 0
        self._refused: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(
        cls,
        address: BrokerAddress,
        *,
        clock: Clock,
        startup_timeout_s: float,
        replicas: int = 1,
        on_state: Callable[[State], None] | None = None,
    ) -> Self:
        """Connect, and wait until JetStream answers; on a cluster that takes a quorum.

        Args:
            startup_timeout_s: the bound of all waiting; also the bring-up budget of each bucket.
            replicas: of every bucket and stream this node makes.
            on_state: told of each change; must not block.

        Raises:
            Unavailable: no broker, or no quorum, within the time.
            BrokerUnfit: too old, without JetStream, without the TLS asked for, or it does not let this node in.
            ConfigRefused: a file or URL of the address cannot be used.

        Cancellation: nothing is left open.
        """
        connection = cls(address, clock=clock, replicas=replicas, bring_up_s=startup_timeout_s)
        options = connection._options()
        if on_state is not None:
            connection.listen(on_state)
        try:
            await connection._bring_up(options)
        except BaseException:
            await connection.close()
            raise
        connection._tell("connected")
        return connection

    @property
    def is_connected(self) -> bool:
        """Whether the socket is up, as far as this side knows."""
        return self._link.is_connected

    @property
    def is_gone(self) -> bool:
        """Whether it does not come back by itself: the broker does not let this side in any more, try after try, or the
        client library has ended it. Tries go on all the same; a broker that is merely away is never gone."""
        return self._refusals >= _REFUSALS_FOR_GOOD or (self._link.is_closed and not self._is_closing)

    @property
    def is_clustered(self) -> bool:
        """Whether the server that this side is connected to has others beside it."""
        return bool(self._link.server_info.get("cluster"))

    @property
    def breaks(self) -> int:
        """How often it has broken: what left over an earlier one may still arrive after what leaves over this one."""
        return self._link.breaks

    @property
    def client(self) -> Link:
        """The client library's connection, for subscriptions. Ask through `request` and `api`."""
        return self._link

    @property
    def js(self) -> JetStreamContext:
        return JetStreamContext(self._link, timeout=API_TIMEOUT_S)

    def listen(self, listener: Callable[[State], None]) -> Callable[[], None]:
        """Have `listener` told of each change of state; it must not block. Returns what ends that."""
        self._listeners.append(listener)

        def forget() -> None:
            with contextlib.suppress(ValueError):
                self._listeners.remove(listener)

        return forget

    async def request(
        self, subject: str, payload: bytes = b"", *, timeout_s: float, headers: Mapping[str, str] | bytes | None = None
    ) -> Msg:
        """Ask, and wait for one answer.

        Args:
            headers: by name, or as `encode_headers` makes them.

        Raises:
            NotTaken: there is no connection, or nothing listens on the subject: the request had no effect.
            Unavailable: no answer; the request may have had its effect.
            Misuse: over the broker's size limit; not sent.
            NotLive: this connection was closed by its owner.
        """
        try:
            return Msg(self._link, data=await self.post(subject, payload, timeout_s=timeout_s, headers=headers))
        except (errors.Error, OSError, TimeoutError) as error:
            raise unanswered(error, subject, timeout_s) from error

    def post(
        self, subject: str, payload: bytes, *, timeout_s: float, headers: Mapping[str, str] | bytes | None = None
    ) -> asyncio.Future[bytes]:
        """Send a request at once, and have the payload of its answer later.

        The future raises what the client library does; `unanswered` says what that means.

        Raises:
            NotTaken, Misuse, NotLive: as `request`.
        """
        link = self._link
        if self._is_closing:
            raise NotLive("the connection to the broker is closed")
        if not link.is_connected:
            raise NotTaken("there is no connection to the broker")
        head = headers if isinstance(headers, bytes) else encode_headers(headers or {})
        size = len(payload) + len(head)
        if size > link.max_payload:
            raise too_large(size, link.max_payload)
        return link.post(subject, payload, timeout_s=timeout_s, head=head)

    async def api(self, verb: str, body: Mapping[str, Any] | None, kind: type[A], *, timeout_s: float) -> A:
        """Ask the JetStream API, for instance `STREAM.INFO.name`.

        Raises:
            ApiError: a definite refusal.
            Unavailable: no answer, or a server that cannot answer now.
        """
        message = await self.request(
            f"$JS.API.{verb}", msgspec.json.encode(body) if body is not None else b"", timeout_s=timeout_s
        )
        answer = decode(message.data, kind)
        if answer.error is not None:
            raise answer.error.as_error()
        return answer

    async def close(self) -> None:
        """End the connection. What is on the wire is not waited for longer than two seconds. Harmless when repeated."""
        self._is_closing = True
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._link.close()
        except (TimeoutError, errors.Error, OSError) as error:
            _log.debug("broker_close_unclean", error=repr(error))
        finally:
            self._link.cut()

    async def _bring_up(self, options: dict[str, Any]) -> None:
        deadline = asyncio.get_running_loop().time() + self.bring_up_s
        connecting = asyncio.ensure_future(self._link.connect(**options))
        try:
            await self._patiently(connecting, deadline)
        finally:
            await _end(connecting)
        self._check_version()
        await self._link.listen_for_answers()
        checking = asyncio.ensure_future(self._wait_for_jetstream())
        try:
            await self._patiently(checking, deadline)
        finally:
            await _end(checking)

    async def _patiently(self, work: asyncio.Future[None], deadline: float) -> None:
        """Wait for a part of the bring-up, saying so, until it is done, is refused, or the time is over."""
        loop = asyncio.get_running_loop()
        while True:
            left = deadline - loop.time()
            done, _ = await asyncio.wait(
                {work, self._refused},
                timeout=max(0.0, min(left, _SAY_SO_EVERY_S)),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if self._refused in done:
                raise self._refused.result()
            if work in done:
                return work.result()
            reason = spoken(self._last_error)
            if left <= _SAY_SO_EVERY_S:
                where = ", ".join(self._address.urls)
                raise Unavailable(
                    f"the broker at {where} was not ready within {self.bring_up_s:g} s ({reason})"
                ) from self._last_error
            waited_s = round(self.bring_up_s - left + _SAY_SO_EVERY_S)
            _log.warning("broker_waiting", urls=self._address.urls, waited_s=waited_s, reason=reason)

    def _options(self) -> dict[str, Any]:
        address = self._address
        check_urls(address.urls)
        if address.credentials is not None:
            check_readable(address.credentials, "stream.credentials")
            check_can_sign()
        return {
            "servers": list(address.urls),
            "name": address.name or None,
            "token": address.token,
            "user_credentials": None if address.credentials is None else str(address.credentials),
            "tls": tls_context(address),
            "allow_reconnect": True,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": 1,
            "connect_timeout": 2,
            "ping_interval": 1,
            "max_outstanding_pings": 3,
            "pending_size": 0,
            "error_cb": self._on_error,
            "disconnected_cb": self._on_disconnected,
            "reconnected_cb": self._on_reconnected,
            "closed_cb": self._on_closed,
        }

    def _check_version(self) -> None:
        version = str(self._link.server_info.get("version", ""))
        numbers = version.split(".")[:2]
        if not all(number.isdigit() for number in numbers) or tuple(int(number) for number in numbers) < OLDEST_BROKER:
            raise BrokerUnfit(
                f"the broker at {self._url} is nats-server {version or 'of an unknown version'}",
                where="stream.url",
                remedy=f"run nats-server {OLDEST_BROKER[0]}.{OLDEST_BROKER[1]} or newer",
            )

    async def _wait_for_jetstream(self) -> None:
        """Until the account's information is answered: in a cluster, only a leader with a quorum does."""
        while True:
            try:
                message = await self.request("$JS.API.INFO", timeout_s=1.0)
                fault = decode(message.data, AccountAnswer).error
                if fault is None:
                    return
                if fault.err_code in JETSTREAM_DISABLED:
                    raise self._no_jetstream()
                self._last_error = fault.as_error()
            except NobodyThere as error:
                if not self._link.server_info.get("jetstream"):
                    raise self._no_jetstream() from error
                self._last_error = error
            except Unavailable as error:
                self._last_error = error
            await asyncio.sleep(0.1)

    def _no_jetstream(self) -> BrokerUnfit:
        return BrokerUnfit(
            f"the broker at {self._url} has no JetStream",
            where="stream.url",
            remedy="start it with JetStream (`nats-server --jetstream`), and enable it for this account",
        )

    @property
    def _url(self) -> str:
        found = self._link.connected_url
        return found.geturl().rpartition("@")[2].removeprefix("nats://") if found else ", ".join(self._address.urls)

    def _refuse(self, error: Exception) -> None:
        if not self._refused.done():
            self._refused.set_result(error)

    async def _on_error(self, error: Exception) -> None:
        self._last_error = error
        text = str(error).lower()
        if any(refusal in text for refusal in _AUTH_REFUSALS):
            refusal = not_let_in(self._url, error)
            self._refuse(refusal)
            self._refusals += 1
            if self._refusals == _REFUSALS_FOR_GOOD:
                _log.error("broker_refuses", reason=str(refusal))
        elif isinstance(error, NoTls):
            self._refuse(without_tls(self._url))
        elif isinstance(error, ssl.SSLCertVerificationError):
            self._refuse(not_trusted(self._url, error))
        elif isinstance(error, ssl.SSLError):
            refusal = certificate_refused(self._url, error, is_named=self._address.tls_cert is not None)
            if refusal is not None:
                self._refuse(refusal)
        _log.debug("broker_error", error=repr(error))

    async def _on_disconnected(self) -> None:
        if not self._is_closing:
            _log.warning("broker_disconnected", urls=self._address.urls)
        self._tell("disconnected")

    async def _on_reconnected(self) -> None:
        self._refusals = 0
        self.links += 1
        _log.info("broker_reconnected", url=self._url)
        self._tell("connected")

    async def _on_closed(self) -> None:
        if not self._is_closing:
            _log.error("broker_connection_closed", urls=self._address.urls)
        self._tell("closed")

    def _tell(self, state: State) -> None:
        for listener in list(self._listeners):
            try:
                listener(state)
            except Exception:  # noqa: BLE001
                # An exception here would end the client's reconnecting.
                _log.exception("broker_listener_failed", state=state)


def unanswered(error: Exception, subject: str, timeout_s: float) -> Unavailable:
    """What the client library's failure of a request says of it: `NotTaken` where it had no effect for certain.

    These sentences reach people, in whatever they asked for; what the broker was asked is in the log at `debug`.
    """
    if isinstance(error, NotFoundError):
        return NothingThere("the broker has nothing of what was asked for")
    _log.debug("broker_request_unanswered", subject=subject, timeout_s=timeout_s, error=repr(error))
    match error:
        case errors.NoRespondersError():
            return NobodyThere("the broker's store does not answer now: it is starting, electing a leader, or off")
        case errors.ConnectionReconnectingError():
            return Unavailable("the connection to the broker broke before it answered")
        case TimeoutError():
            return Unavailable(f"the broker did not answer within {round(timeout_s, 2):g} s")
        case _:
            return Unavailable(f"the broker could not be asked: {error!r}")


def decode(data: bytes, kind: type[A]) -> A:
    """A JSON answer as a typed value.

    Raises:
        Unavailable: it is not one: whoever answered, nothing is known.
    """
    try:
        return decoding.decode(data, kind)
    except msgspec.MsgspecError as error:
        raise Unavailable(f"the broker's answer cannot be read: {error}") from error


async def _end(work: asyncio.Future[None]) -> None:
    """Cancel a part of the bring-up and see it end; the library may swallow a cancellation, so not for ever."""
    work.cancel()
    done, _ = await asyncio.wait({work}, timeout=1.0)
    if done and not work.cancelled():
        work.exception()
