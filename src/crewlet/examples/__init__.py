"""Companies to start from, shipped with the package.

Belongs here: a folder a company, its documents and its programs, ready to be copied and changed.
Does not: anything that the rest of the package imports; the programs use the standard library only.
"""
