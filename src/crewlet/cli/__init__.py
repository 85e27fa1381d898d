"""The command line: one file a noun.

Belongs here: arguments, printing, exit codes.
Does not: decisions and I/O that the node or wiring already has.
"""
