"""Whether an address can be listened on, asked before anything is started that would end for it."""

import socket


class ListenFailed(Exception):
    """The API's address cannot be listened on. `str(error)` is one sentence that says which, and what to do."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket for the API.

    Args:
        host: an address of this machine.
        port: 0 takes a free one.

    Raises:
        ListenFailed: the address is in use or not this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise ListenFailed(f"The API cannot listen: api.host {host!r} is not an address of this machine.") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(512)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        what = f"The API cannot listen on {host}:{port} ({error.strerror})"
        raise ListenFailed(f"{what}; set api.port to auto or to a free port.") from error
    return listening


def refuse_unusable(host: str, port: int) -> None:
    """Listen for an instant; a port of 0 is only held against the host.

    Raises:
        ListenFailed: see `listen`.
    """
    listen(host, port).close()
