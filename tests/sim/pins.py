"""Where each planted bug is caught: the simulation, its exit code, and what its finding begins with."""

from crewlet.testing.sim import LIVENESS, SAFETY, SimOptions
from crewlet.testing.sim.mutants import Catch

PINS = {
    "epochs forgotten": Catch(SimOptions(0, minutes=3.0), SAFETY, "P2"),
    "lapse judged early": Catch(SimOptions(0, minutes=3.0), SAFETY, "P7"),
    "release before detach": Catch(SimOptions(0, minutes=3.0), SAFETY, "P1"),
    "lease kept at a release": Catch(SimOptions(0, minutes=3.0, faults=("stop",)), SAFETY, "P6"),
    "presence kept at a drain": Catch(SimOptions(0, minutes=3.0, faults=("stop",)), SAFETY, "P6"),
    "membership instead of freshness": Catch(SimOptions(3, minutes=3.0), SAFETY, "P7"),
    "starts without asking": Catch(SimOptions(3, minutes=3.0), SAFETY, "P7"),
    "fence on membership": Catch(SimOptions(0, minutes=4.0, faults=("pause",)), SAFETY, "P1"),
    "fence without a clock": Catch(SimOptions(0, minutes=4.0, faults=("pause",)), SAFETY, "P1"),
    "fence not checked before sending": Catch(
        SimOptions(143, minutes=6.0, faults=("pause", "outage", "stall")), SAFETY, "P8"
    ),
    "no bound by the share": Catch(SimOptions(0, minutes=3.0), SAFETY, "P6"),
    "deaf after deferral": Catch(SimOptions(0, minutes=3.0, faults=("pause", "latency")), LIVENESS, "P6"),
    "never admitted again": Catch(SimOptions(3, minutes=3.0), LIVENESS, "P6"),
    "renewals not told to the inbox": Catch(SimOptions(0, minutes=3.0, faults=()), LIVENESS, "P6"),
    "no lapse timer": Catch(SimOptions(4, minutes=4.0, faults=("pause", "partition")), LIVENESS, "P6"),
    "renew counted from the reply": Catch(SimOptions(57, minutes=4.0, faults=("latency", "partition")), SAFETY, "P8"),
    "gate blind to presence": Catch(
        SimOptions(69, nodes=4, seats=2, minutes=3.0, faults=("stop", "deploy")), SAFETY, "P7"
    ),
    "stuck seat not charged": Catch(SimOptions(0, seats=12, minutes=5.0, faults=("hooks", "stop")), SAFETY, "P6"),
    "acquire failure not taken down": Catch(SimOptions(0, minutes=3.0), SAFETY, "P1"),
    "ack before ledger": Catch(SimOptions(0, minutes=3.0), SAFETY, "P4"),
    "ledger not read": Catch(SimOptions(0, minutes=3.0), SAFETY, "P5"),
    "ledger not written": Catch(SimOptions(0, minutes=3.0), SAFETY, "P4"),
    "broken turn acked": Catch(SimOptions(0, minutes=3.0), SAFETY, "P4"),
    "republish on fence": Catch(SimOptions(4, minutes=4.0, faults=("partition", "stop")), SAFETY, "P4"),
    "mail under a fresh id": Catch(SimOptions(0, minutes=3.0), SAFETY, "P4"),
    "no give-back on cancel": Catch(SimOptions(18, seats=12, minutes=10.0, faults=("early",)), SAFETY, "P6"),
    "no give-back at all": Catch(SimOptions(0, seats=12, minutes=10.0, faults=("loss", "stop")), SAFETY, "P6"),
    "lower count not advertised": Catch(SimOptions(2, seats=12, minutes=4.0, faults=("stop", "crash")), SAFETY, "P6"),
    "one claim a pass": Catch(SimOptions(0, seats=12, minutes=4.0, faults=("stop", "crash")), SAFETY, "P6"),
    "quiesce forgotten at a deferral": Catch(SimOptions(18, minutes=4.0, faults=("pause", "election")), SAFETY, "P4"),
    "pauses heard and not heeded": Catch(SimOptions(0, minutes=3.0, faults=("pausing",)), SAFETY, "P7"),
    "pauses not read at a takeover": Catch(SimOptions(0, minutes=4.0, faults=("unread",)), SAFETY, "P7"),
    "stopped turn goes on": Catch(SimOptions(2, minutes=3.0, faults=("pausing",)), SAFETY, "P7"),
    "late renewal given back at once": Catch(SimOptions(30, minutes=4.0, faults=("pause", "limp")), SAFETY, "P1"),
    "own lapsed tenure taken up again": Catch(SimOptions(5, minutes=4.0, faults=("limp",)), SAFETY, "P8"),
    "retired without a grace": Catch(SimOptions(0, minutes=6.0, faults=("company",)), SAFETY, "P9"),
    "absent by one node's document": Catch(SimOptions(0, minutes=6.0, faults=("company",)), SAFETY, "P9"),
    "unread roster taken as empty": Catch(SimOptions(0, minutes=6.0, faults=("company",)), SAFETY, "P9"),
    "unanswered delete taken for none": Catch(SimOptions(4, minutes=6.0, faults=("limbo",)), SAFETY, "P9"),
    "stopped seats keep the deadline": Catch(SimOptions(0, minutes=3.0, faults=("outage",)), SAFETY, "P10"),
    "leaving seats left out of the deadline": Catch(SimOptions(0, minutes=3.0, faults=("stop",)), SAFETY, "P10"),
    # What is left runs on beside the next owner (P1), or the parent ends a node that turns (P10).
    "unproven seats left alone at a drain": Catch(
        SimOptions(5, minutes=6.0, faults=("hooks", "deploy", "stall")), SAFETY, "P1", seeds=25
    ),
    "no beat while a duty rests": Catch(SimOptions(0, minutes=3.0, faults=()), SAFETY, "P10"),
    "tools left behind at a release": Catch(SimOptions(0, minutes=3.0, faults=("stop",)), SAFETY, "P1"),
    "tools not killed": Catch(SimOptions(0, minutes=4.0, faults=("partition",)), SAFETY, "P1"),
    "calls named by the run": Catch(SimOptions(0, minutes=4.0, faults=("turns", "crash")), SAFETY, "P8"),
    "equal calls under one name": Catch(SimOptions(0, minutes=4.0, faults=()), SAFETY, "P8"),
    "broken turn runs again after an effect": Catch(SimOptions(0, minutes=4.0, faults=("turns",)), SAFETY, "P5"),
    "placement not asked": Catch(SimOptions(0, minutes=4.0, faults=("stop", "crash")), SAFETY, "P7"),
    "no limit of claims": Catch(SimOptions(0, seats=40, minutes=0.5, faults=()), SAFETY, "P6"),
    "slots not counted": Catch(SimOptions(0, seats=12, minutes=2.0, faults=()), SAFETY, "P1"),
    "instants passed by in silence": Catch(SimOptions(7, minutes=4.0), SAFETY, "P4", seeds=25),
    "mail before its claim": Catch(SimOptions(7, minutes=4.0), SAFETY, "P4", seeds=25),
    "a fire sent under a name of its sender": Catch(SimOptions(7, minutes=4.0), SAFETY, "P4", seeds=25),
    "a fire told and not sent": Catch(SimOptions(7, minutes=4.0), SAFETY, "P4", seeds=25),
    "a claimed fire goes to the seat of today": Catch(
        SimOptions(1399, minutes=10.0, faults=("crash", "loss", "company")), SAFETY, "P4", seeds=25
    ),
    "schedules begun anew when the duty moves": Catch(SimOptions(15, minutes=4.0), SAFETY, "P4", seeds=25),
    "schedules of the document before go on": Catch(SimOptions(7, minutes=4.0), SAFETY, "P4", seeds=25),
    "schedules looked at ahead of time": Catch(SimOptions(7, minutes=4.0), SAFETY, "P4", seeds=25),
    "each instant that went by is fired": Catch(SimOptions(127, minutes=6.0), SAFETY, "P4", seeds=25),
    "fires for paused seats": Catch(SimOptions(31, minutes=4.0), SAFETY, "P7", seeds=25),
    "fires skipped as if all were paused": Catch(SimOptions(7, minutes=4.0), SAFETY, "P4", seeds=25),
    "claimed fires left behind": Catch(
        SimOptions(95, minutes=10.0, faults=("crash", "loss", "company")), LIVENESS, "P6", seeds=25
    ),
}
