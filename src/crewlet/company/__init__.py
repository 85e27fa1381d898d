"""The org document: units, roles, seats, handles, agent ids, placement selectors, validation. Pure.

Belongs here: what a company is, read from its document, and every rule about that document.
Does not: files other than the document, nodes, leases, mail.
"""
