"""UUIDs as text, from hexadecimal digits. The library's `UUID` takes several times as long."""

_VARIANTS = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


def uuid_of(digits: str, version: int) -> str:
    """A UUID of a version, and of the variant that has versions, from 32 lower-case digits or the first 32 of more."""
    variant = _VARIANTS[digits[16]]
    return f"{digits[:8]}-{digits[8:12]}-{version}{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:32]}"


def in_groups(digits: str) -> str:
    """32 digits in the groups of a UUID, with each digit as it is."""
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
