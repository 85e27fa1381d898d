"""How much a mail may be: asked by the node, and by the command line before it sends. Imports nothing."""

MAX_MAIL_BYTES = 1_048_576
"""A body larger than this is refused to its sender."""

MAX_ID_CHARS = 200
MESSAGE_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:=@+-]{0,199}$"
MESSAGE_ID_RULE = f"an id has 1 to {MAX_ID_CHARS} ASCII letters, digits and ._:=@+-, and begins with a letter or digit"

MAX_LINE_CHARS = 200
LINE_PATTERN = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$"
LINE_RULE = f"write one line of at most {MAX_LINE_CHARS} characters, without line breaks or other control characters"
"""For a subject, the name of a conversation and the like."""

MAX_PAUSE_S = 10 * 366 * 24 * 3600.0
