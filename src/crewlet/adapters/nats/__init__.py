"""The broker: NATS JetStream behind the ports.

Belongs here: the one connection of a node, cells and mail over it, and everything that knows how the server answers.
Does not: starting a server (see `crewlet.supervisor`), or any rule about seats.
"""
