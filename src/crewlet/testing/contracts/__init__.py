"""The checks that every implementation of a port answers to.

Belongs here: one suite a port, told in the port's own words, taking a world that makes the implementation.
Does not: what only one implementation promises.
"""
