"""A whole company in one process, on twins and in virtual time, for tests of the user's own seats.

Belongs here: what `crewlet.testing.InMemoryCompany` is made of: stand-ins for models, tool servers and worker
processes, the faults that a test plants, and what is told of a seat when an assertion fails.
Does not: any rule of seats, mail, turns or nodes, which are the real ones.
"""
