"""The kinds of seat: one module each.

Belongs here: how one kind of agent is brought from mail to outcome.
Does not: screening, the ledger, settling the delivery.
"""
