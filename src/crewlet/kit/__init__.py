"""Helpers that know nothing of seats: supervised tasks, back-off, latches, located YAML, refusals.

Belongs here: code that would be of use in any asyncio program.
Does not: anything that names a seat, a lease, a message or a node.
"""
