"""The names of tools: unique in a seat, and such that every model provider takes them. Pure.

A tool is `{server}__{tool}`, always, so that its name does not change when another server is added. A server's name has
no underscore, so that no two servers can make the same name.
"""

import re
from collections.abc import Collection
from hashlib import sha256
from typing import Final

MAX_NAME_CHARS: Final = 64
SEPARATOR: Final = "__"

_OUTSIDE = re.compile(r"[^A-Za-z0-9_-]")
_DIGEST_CHARS = 8


def tool_name(server: str, tool: str, taken: Collection[str] = ()) -> str:
    """The name of a server's tool in its seat.

    A name that has to be changed to fit, or is taken, ends in a digest of the tool's own name, and so is the same each
    time.
    """
    plain = _OUTSIDE.sub("_", tool)
    name = f"{server}{SEPARATOR}{plain}"
    if plain == tool and len(name) <= MAX_NAME_CHARS and name not in taken:
        return name
    beginning = name[: MAX_NAME_CHARS - _DIGEST_CHARS - 1]
    digest = sha256(tool.encode(errors="surrogatepass"))
    while (name := f"{beginning}-{digest.hexdigest()[:_DIGEST_CHARS]}") in taken:
        digest.update(b" ")
    return name
