"""A documentation desk: programs that check Markdown documents and write a report on each.

Belongs here: a company, the programs of its seats, and what they share; standard library only, started once a turn.
Does not: an import of any other part of this package; the folder works wherever it is copied.
"""
