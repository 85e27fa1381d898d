"""A company on three nodes, harmed on purpose, that proves from the evidence that it survived.

Belongs here: starting the fleet, its mail, the faults, the evidence and the judgement on it.
Does not: any seat's work (`crewlet.examples`), any part of a node.
"""
