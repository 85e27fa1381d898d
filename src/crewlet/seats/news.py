"""What a node tells its peers when it has given seats back, and what hearing it changes in what they know.

The news is a hint. The store decides every claim, and the next pass reads the roster again.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from crewlet.kit import decoding
from crewlet.seats.noderow import NodeRow

Standing = Literal["stays", "withdrawn", "gone"]


class Freed(msgspec.Struct, frozen=True):
    """Seats that one node has just given back: the store has acknowledged each release.

    Attributes:
        owner: the incarnation that tells it; `node` its id.
        seats: their handles.
        standing: whether its peers still divide the seats over this node: `withdrawn` has its presence and takes no
            seats, `gone` has given its presence up.
    """

    owner: str
    node: str
    seats: tuple[str, ...]
    standing: Standing = "stays"


def encode(freed: Freed) -> bytes:
    """As it is broadcast: a JSON object."""
    return msgspec.json.encode(freed)


def decode(data: bytes) -> Freed:
    """Read what was broadcast; fields of a later build are left out.

    Raises:
        ValueError: it is no such news.
    """
    try:
        return decoding.decode(data, Freed)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def rows_after(rows: Sequence[NodeRow], freed: Freed) -> Sequence[NodeRow]:
    """The roster as it would be read now, as far as the news tells."""
    match freed.standing:
        case "stays":
            return rows
        case "withdrawn":
            return [
                msgspec.structs.replace(row, seats_withdrawn=True) if row.node_id == freed.node else row for row in rows
            ]
        case "gone":
            return [row for row in rows if row.node_id != freed.node]
