"""The doors to the world, as Protocols whose docstrings are the promises, and the values that pass through them.

Belongs here: what a caller may rely on, told once, for every adapter and twin.
Does not: any implementation, and any rule about seats.
"""
