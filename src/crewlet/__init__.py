"""Crewlet runs a company of AI agents on a fleet of machines.

Exactly one node runs a seat at a time, no mail is lost, finished work does not run twice.
"""

__version__ = "0.1.0"
