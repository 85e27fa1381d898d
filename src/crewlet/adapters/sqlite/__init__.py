"""The node's own database: one file, one writer, numbered migrations.

Belongs here: what speaks SQL.
Does not: what a turn is, or when something is forgotten.
"""
