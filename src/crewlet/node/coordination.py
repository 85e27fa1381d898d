"""One kind of coordination on a broker: nobody shares leases there while a node keeps its own, nor the other way round.

Epochs go on from one kind to the other. What the marks and the counters are is said in `seats`; here is when a node
looks at which of them.
"""

from crewlet.kit.latch import Latch
from crewlet.kit.refusal import ConfigRefused
from crewlet.kit.supervise import Tasks
from crewlet.node.bundle import NodeConfig, Ports
from crewlet.ports.cells import Cells
from crewlet.ports.term import Term
from crewlet.seats.formerepochs import note_epoch, take_over
from crewlet.seats.formerleases import sharing, wait_until_free
from crewlet.seats.keeper import KEEPER_BUCKET, KeeperMark, wait_until_nobody_keeps
from crewlet.seats.leases import EPOCHS_BUCKET, LeaseStore, leases_bucket


class Coordination:
    """The node's side of it. `begin`, then `recheck` before the first claim; `end` when nothing is held any more.

    Attributes:
        contested: set, with what a person is to be told, when another node runs seats beside this one's own leases.
    """

    def __init__(self, config: NodeConfig, ports: Ports, tasks: Tasks) -> None:
        self.contested: Latch[ConfigRefused] = Latch()
        self._config = config
        self._ports = ports
        self._tasks = tasks
        self._own_epochs: Cells | None = None
        self._mark: KeeperMark | None = None
        self._keepers: Cells | None = None

    async def begin(self, epochs: Cells) -> bool:
        """Keep to one kind from here on, and go on from the epochs of the other.

        Args:
            epochs: the counters that this node's leases use.

        Returns:
            Whether a counter was lower than what this node had noted: the store may have forgotten leases as well.

        Raises:
            ConfigRefused: nodes of the other kind run the company's seats.
            Unavailable: the broker did not answer.
        """
        await self._keep_to_one_kind()
        try:
            were_lower = await self._take_over_epochs(epochs)
        except ConfigRefused:
            await self.end()
            raise
        if self._mark is not None:
            self._tasks.start(self._watch(self._mark), "mark of local leases")
        return were_lower

    async def recheck(self) -> None:
        """Look once more whether a node keeps its leases to itself, where this one shares them. Raises as `begin`."""
        if self._keepers is not None:
            await wait_until_nobody_keeps(self._keepers, self._ports.clock)

    def note(self, term: Term) -> None:
        """Note the epoch of a tenure of this node, should the shared counters be lost. Nothing waits for it."""
        if self._own_epochs is not None:
            self._tasks.start(note_epoch(self._own_epochs, term), f"{term.resource}: its epoch")

    async def on_reset(self, store: str) -> None:
        """A store was made anew, emptied or put back: raise counters that fell to what this node noted.

        Raises:
            Unavailable: the broker did not answer.
        """
        if store == EPOCHS_BUCKET.name and self._own_epochs is not None:
            await take_over(self._own_epochs, await self._ports.lease_cells.open(EPOCHS_BUCKET))

    async def end(self) -> None:
        """Take this node's mark away."""
        if self._mark is not None:
            await self._mark.end()

    async def _keep_to_one_kind(self) -> None:
        ports = self._ports
        if not ports.may_meet_other_kind:
            return
        marks = await ports.cells.open(KEEPER_BUCKET)
        if ports.leases_can_lapse:
            self._keepers = marks
            await wait_until_nobody_keeps(marks, ports.clock)
            return
        mark = KeeperMark(marks, self._config.owner, ports.clock, self._sharing)
        await mark.write()
        self._mark = mark

    async def _watch(self, mark: KeeperMark) -> None:
        self.contested.set(await mark.contested())

    async def _sharing(self) -> list[str]:
        """Who holds leases on this node's broker, where this one keeps its own."""
        shared = await self._former_leases()
        return await sharing(shared) if shared is not None else []

    async def _former_leases(self) -> LeaseStore | None:
        find = self._ports.find_former
        if find is None:
            return None
        leases = await find(leases_bucket(self._config.lease_ttl_s))
        epochs = await find(EPOCHS_BUCKET)
        if leases is None or epochs is None:
            return None
        return LeaseStore(leases, epochs, clock=self._ports.clock, entropy=self._ports.entropy)

    async def _take_over_epochs(self, epochs: Cells) -> bool:
        """Go on from the epochs of the other kind of coordination, once nobody holds leases by it."""
        ports = self._ports
        if ports.find_former is None or (former := await ports.find_former(EPOCHS_BUCKET)) is None:
            return False
        if ports.leases_can_lapse:
            self._own_epochs = former
        elif shared := await self._former_leases():
            await wait_until_free(shared, ports.clock)
            if self._mark is not None:
                # It may have aged out meanwhile, so that somebody came in.
                await self._mark.write()
                await wait_until_free(shared, ports.clock)
        return await take_over(former, epochs)
