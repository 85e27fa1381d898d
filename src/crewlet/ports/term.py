"""The value that proves a tenure."""

import msgspec


class Term(msgspec.Struct, frozen=True):
    """One owner holding one resource at one epoch. It travels with every fenced write.

    Attributes:
        resource: `class:name`, for a seat `seat:{handle}`.
        owner: one process incarnation, `{node_id}:{random}`.
        epoch: the fencing token; grows at every new tenure of the resource and never resets. 1 or more.
    """

    resource: str
    owner: str
    epoch: int
