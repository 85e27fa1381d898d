"""Mail above the port: envelopes, topics, partitions, screening, the completion ledger, the mailboxes of a company.

Belongs here: what a message is, where it goes, and whether it has been worked.
Does not: ownership (told through plain callables), turns, and the broker.
"""
