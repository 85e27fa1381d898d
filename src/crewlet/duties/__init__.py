"""Work that belongs to the company and not to a seat, done by one node at a time: the frame, and one module a duty.

Belongs here: claiming a duty tick by tick, and what each duty does in a tick.
Does not: what warms this process's own memory (every node does that), and rules that mail or seats state by themselves.
"""
