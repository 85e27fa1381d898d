"""UUIDs as text: those of the standard library."""

import uuid
from hashlib import sha256

import pytest

from crewlet.kit.uuids import in_groups, uuid_of

DIGESTS = [sha256(bytes([number])).hexdigest() for number in range(64)]


@pytest.mark.parametrize("version", [4, 8])
def test_a_uuid_is_spelled_as_the_standard_library_spells_it(version: int) -> None:
    for digest in DIGESTS:
        spelled = uuid_of(digest, version)
        read = uuid.UUID(spelled)
        assert (str(read), read.version, read.variant) == (spelled, version, uuid.RFC_4122)
        changed = {12: str(version), 16: spelled[19]}
        assert read.hex == "".join(changed.get(place, digit) for place, digit in enumerate(digest[:32]))


def test_digits_in_groups_are_all_kept() -> None:
    for digest in DIGESTS:
        assert in_groups(digest[:32]) == str(uuid.UUID(digest[:32]))
