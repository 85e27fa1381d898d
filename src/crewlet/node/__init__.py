"""Assembly of a node from a bundle of ports, its lifecycle, the snapshots it shows and the commands it takes.

Belongs here: what ties ownership, mail and turns together, above every port.
Does not: any adapter, and any way to show or ask (that is web and cli).
"""
