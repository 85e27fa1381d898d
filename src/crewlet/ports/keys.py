"""The grammar of bucket names, keys, prefixes and entries, checked alike by every adapter of `cells`."""

import re
from functools import lru_cache

from crewlet.ports.cells import BucketSpec
from crewlet.ports.errors import Misuse

MAX_VALUE_BYTES = 1024 * 1024

_NAME = re.compile(r"[a-z0-9_]+", re.ASCII)
_TOKEN = r"[-/_=a-zA-Z0-9]+"
_KEY = re.compile(rf"{_TOKEN}(?:\.{_TOKEN})*", re.ASCII)


@lru_cache(10_000)
def _is_key(text: str) -> bool:
    return _KEY.fullmatch(text) is not None


def check_spec(spec: BucketSpec) -> None:
    """Raises Misuse unless a bucket can be named and aged like this."""
    if not _NAME.fullmatch(spec.name):
        raise Misuse(f"a bucket cannot be called {spec.name!r}")
    if spec.max_age_s is not None and not spec.max_age_s >= 1:
        raise Misuse(f"bucket {spec.name}: an age is 1 s or more, not {spec.max_age_s!r}")


def check_key(key: str) -> None:
    """Raises Misuse unless `key` can name an entry."""
    if not _is_key(key):
        raise Misuse(f"not a key: {key!r}")


def check_prefix(prefix: str) -> None:
    """Raises Misuse unless `prefix` is empty or whole tokens with a closing dot."""
    if prefix and not (prefix.endswith(".") and _is_key(prefix[:-1])):
        raise Misuse(f"not a prefix of whole tokens with a closing dot: {prefix!r}")


def check_write(spec: BucketSpec, key: str, value: bytes, ttl_s: float | None) -> None:
    """Raises Misuse unless this bucket takes such an entry."""
    check_key(key)
    if len(value) > MAX_VALUE_BYTES:
        raise Misuse(f"{spec.name}/{key}: {len(value)} bytes are over the {MAX_VALUE_BYTES} that an entry may have")
    if ttl_s is None:
        return
    if not spec.allows_entry_ttl:
        raise Misuse(f"bucket {spec.name} takes no age with an entry")
    if not ttl_s >= 1:
        raise Misuse(f"{spec.name}/{key}: an age is 1 s or more, not {ttl_s!r}")


def check_expect(expect: int) -> None:
    """Raises Misuse unless `expect` is a revision; 0 would mean "any" or "none" to some stores."""
    if expect < 1:
        raise Misuse(f"not a revision: {expect!r}")
