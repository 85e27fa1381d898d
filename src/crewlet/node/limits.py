"""How much a mail may be: asked by the node, and by the command line before it sends. Imports nothing."""

MAX_MAIL_BYTES = 1_048_576
"""A body larger than this is refused to its sender."""

MAX_ID_CHARS = 200
