"""How much a mail may be: asked by the node, and by the command line before it sends. Imports nothing."""

MAX_MAIL_BYTES = 1_048_576
"""A body larger than this is refused to its sender."""

MAX_ID_CHARS = 200
MESSAGE_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:=@+-]{0,199}$"

MAX_PAUSE_S = 10 * 366 * 24 * 3600.0
