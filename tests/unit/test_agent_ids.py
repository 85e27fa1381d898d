"""Who the agent of a seat is: derived from names, so that every node says the same."""

from uuid import UUID

from crewlet.company.model import Company, Seat


def test_an_agents_id_follows_from_the_names_of_company_and_seat_alone() -> None:
    acme = Company("acme", (Seat("ceo"), Seat("cfo")))
    assert acme.agent_id("ceo") == UUID("e9234c52-d94d-5b38-a96e-81cd4d8b8cbd")
    assert Company("acme", (Seat("ceo"),)).agent_id("ceo") == acme.agent_id("ceo")
    assert len({acme.agent_id("ceo"), acme.agent_id("cfo"), Company("other", (Seat("ceo"),)).agent_id("ceo")}) == 3
