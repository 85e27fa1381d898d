"""Ownership: leases, the protocol gate, placement, the seat host with its sweep, heartbeat, admission, fence and drain.

Belongs here: who runs which seat, and the proof of it.
Does not: what a seat does with its mail, and any clock, store or process except through a port.
"""
