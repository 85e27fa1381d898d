"""The HTTP API: reads node.status, writes through node.commands.

Belongs here: routes, shapes and guards of HTTP.
Does not: decisions; the command line shows the same snapshots.
"""
