"""A company of seats in the user's own code, one of each way to write one.

Belongs here: what README.md shows, as it runs. Its modules are loaded by the seats' workers from this folder.
Does not: anything that Crewlet itself needs.
"""
