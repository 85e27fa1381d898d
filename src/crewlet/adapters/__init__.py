"""What really answers at the ports: the broker, this process, the operating system.

Belongs here: one package an outside thing, each behind the ports only.
Does not: rules of the project; adapters do not see each other.
"""
