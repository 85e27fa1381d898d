"""What the log says of the fleet as each pass reads it: documents that differ, and roles that no live node has.

Where no node has a role a whole kind of work is done by nobody, though no single node's settings are wrong.
"""

from collections.abc import Awaitable, Callable, Sequence

import structlog

from crewlet.kit.supervise import Tasks
from crewlet.node.documents import DocumentWatch
from crewlet.node.roster import FleetRoster
from crewlet.node.status import FleetSnapshot
from crewlet.ports.clock import Clock
from crewlet.seats.lease import Lease
from crewlet.seats.noderow import ROLES, roles_of

TELL_AFTER_S = 60.0
"""How long a role may be without a node before the log says so: a fleet starts, and is replaced, node by node."""

_log = structlog.get_logger()


class FleetWatch:
    """What is to be told of the live nodes' presences. `read` is asked only while documents differ."""

    def __init__(
        self, roster: FleetRoster, read: Callable[[], Awaitable[FleetSnapshot]], clock: Clock, tasks: Tasks
    ) -> None:
        self._documents = DocumentWatch(roster, read, clock, tasks)
        self._roles = RoleWatch(clock)

    @property
    def other_documents(self) -> tuple[str, ...]:
        """The live nodes with another document, as they were last read."""
        return self._documents.others

    def note(self, presences: Sequence[Lease]) -> None:
        """The live nodes as they were just read."""
        self._documents.note(presences)
        self._roles.note(presences)


class RoleWatch:
    """Says in the log when a role is without a node, and when it has one again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}
        self._told: set[str] = set()

    def note(self, presences: Sequence[Lease]) -> None:
        """The live nodes as they were just read."""
        manned = {role for lease in presences for role in roles_of(lease)}
        now = self._clock.elapsed()
        for role in ROLES:
            if role in manned:
                self._since.pop(role, None)
                if role in self._told:
                    self._told.remove(role)
                    _log.info("fleet_role_manned", role=role)
            elif now - self._since.setdefault(role, now) >= TELL_AFTER_S and role not in self._told:
                self._told.add(role)
                reason = f"no live node has this role: name {role!r} among node.roles in the settings of one"
                _log.warning("fleet_role_unmanned", role=role, reason=reason)
