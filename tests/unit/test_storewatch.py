"""Which of a server's ailments ask for a new start."""

import json

import pytest

from crewlet.supervisor.storewatch import write_error

FULL = "JetStream stream '$G > S' write error: write /data/1.blk: no space left on device"


def page(status: str, error: str | None) -> bytes:
    body = {"status": "unavailable"} | ({} if error is None else {"error": error})
    return f"HTTP/1.0 {status}\r\nContent-Type: application/json\r\n\r\n{json.dumps(body)}".encode()


def test_a_write_that_failed_does() -> None:
    assert write_error(page("503 Service Unavailable", FULL)) == FULL


@pytest.mark.parametrize(
    "answer",
    [
        page("200 OK", None),
        page("503 Service Unavailable", "JetStream has not established contact with a meta leader"),
        page("503 Service Unavailable", "JetStream stream '$G > S' is not current"),
        page("503 Service Unavailable", None),
        b"HTTP/1.0 503 Service Unavailable\r\n\r\nwrite error",
        b"HTTP/1.0 503 Service Unavailable\r\n\r\n[]",
        b"HTTP/1.0 503 Service Unavailable\r\n\r\n" + b"[" * 100_000,
        b"",
    ],
)
def test_what_passes_by_itself_or_cannot_be_read_does_not(answer: bytes) -> None:
    assert write_error(answer) is None
