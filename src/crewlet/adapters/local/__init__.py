"""Leases that never leave this process, for a company on one machine.

Belongs here: buckets in memory, the file that lets epochs grow across restarts, and signals in memory.
Does not: mail, and any record that a second machine would have to see.
"""
