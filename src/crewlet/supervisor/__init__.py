"""The parent process of `crewlet up`: standard library only, forks early, never loads the rest.

Belongs here: the broker and node as children, the shared deadline, the proof of death.
Does not: anything that imports another package of the project.
"""
