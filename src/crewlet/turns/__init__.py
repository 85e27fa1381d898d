"""One turn, from a partition of mail to its outcome: dispatch, the fence inside it, the runners.

Belongs here: what happens between a delivery and its ack.
Does not: which node may do it (the fence is handed in), and how a process or a model is reached.
"""
