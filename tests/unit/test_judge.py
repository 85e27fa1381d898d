"""The demo's judgement: planted faults are found and named, and what is right is left alone."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from crewlet.testing.demo.judge import Completion, Evidence, Fault, Send, Verdict, judge
from crewlet.testing.demo.trail import Line

KILL_AT, FREEZE_AT = 100.0, 200.0
WALL = 1_000_000.0
"""The wall clock when the boot clock shows 0."""


def run(
    name: str,
    owner: str,
    epoch: int,
    began: float,
    ended: float,
    *,
    trigger: str = "m",
    sent: Sequence[str] = (),
    is_cut: bool = False,
    seat: str = "s",
) -> list[Line]:
    def line(at: float, phase: str, sent_id: str = "") -> Line:
        return Line(seat, (trigger,), name, owner, epoch, WALL + at, at, phase, sent_id)

    lines = [line(began, "begin"), *(line(began, "sent", message) for message in sent)]
    ticks = int((ended - began) / 0.1)
    lines += [line(began + 0.1 * number, "tick") for number in range(1, ticks + 1)]
    return [*lines, line(ended, "tick" if is_cut else "end")]


def done(trigger: str, at: float, seat: str = "s", outcome: str = "delivered") -> Completion:
    return Completion(seat, trigger, WALL + at, outcome)


def a_sound_demo() -> Evidence:
    """Seat `s` goes from n1 (killed) to n2 (frozen) to n3; each fault cuts a run that the next owner does again."""
    lines = [
        *run("r1", "n1:a", 1, 90, 91, trigger="m1", sent=["x1"]),
        *run("r2", "n1:a", 1, 99.5, KILL_AT, trigger="m2", is_cut=True),
        *run("r3", "n2:b", 2, 112, 113, trigger="m2"),
        *run("r4", "n2:b", 2, 199.8, FREEZE_AT, trigger="m3", is_cut=True),
        *run("r5", "n3:c", 3, 214.5, 215, trigger="m3"),
    ]
    return Evidence(
        nodes=3,
        seats=["s", "t"],
        lines={
            "s": lines,
            "t": [
                *run("q1", "n3:c", 1, 92, 93, trigger="x1", seat="t"),
                *run("q2", "n1:d", 2, 415.5, 416, trigger="m9", seat="t"),
            ],
        },
        sends=[
            Send("m1", "the demo", "s"),
            Send("m2", "the demo", "s"),
            Send("m3", "the demo", "s"),
            Send("m9", "the demo", "t"),
        ],
        completions=[
            done("m1", 91.1),
            done("m2", 113.1),
            done("m3", 215.1),
            done("x1", 93.1, "t"),
            done("m9", 416.1, "t"),
        ],
        waiting={"s": 0, "t": 0},
        faults=[
            Fault("killed", "n1", KILL_AT, KILL_AT),
            Fault("frozen", "n2", FREEZE_AT, 212.0),
            Fault("broker", "n3", 300.0, 301.0),
            Fault("parent_killed", "n3", 400.0, 405.0),
        ],
        broker_restarts=1,
        lease_ttl_s=10,
        elapsed_s=250.0,
    )


def with_lines(evidence: Evidence, *more: Line, first: bool = False) -> Evidence:
    mine = evidence.lines["s"]
    return replace(evidence, lines={**evidence.lines, "s": [*more, *mine] if first else [*mine, *more]})


def only_problem(verdict: Verdict) -> str:
    assert not verdict.ok
    assert len(verdict.problems) == 1, verdict.problems
    return verdict.problems[0]


def test_a_demo_in_which_all_went_well_is_ok() -> None:
    verdict = judge(a_sound_demo())
    assert verdict.problems == ()
    assert verdict.as_json() == {
        "ok": True,
        "nodes": 3,
        "seats": 2,
        "sent": 5,
        "finished": 5,
        "lost": 0,
        "ran_twice": 0,
        "rerun_after_cut": ["m2", "m3"],
        "owners_at_once_max": 1,
        "stale_epoch_writes": 0,
        "takeover_s": {"killed": 12.0, "parent_killed": 15.5, "frozen": 14.5},
        "broker_restarts": 1,
        "lease_ttl_s": 10,
        "elapsed_s": 250.0,
    }


def test_a_message_that_was_never_finished_is_lost_and_named() -> None:
    evidence = a_sound_demo()
    verdict = judge(replace(evidence, completions=[c for c in evidence.completions if c.trigger != "m3"]))
    assert (verdict.sent, verdict.finished, verdict.lost) == (5, 4, 1)
    assert only_problem(verdict) == "message m3 from the demo to s was never finished"


def test_mail_that_a_seat_sent_is_counted_and_missed_too() -> None:
    evidence = a_sound_demo()
    verdict = judge(replace(evidence, completions=[c for c in evidence.completions if c.trigger != "x1"]))
    assert verdict.lost == 1
    assert only_problem(verdict) == "message x1 from s was never finished"


def test_mail_finished_by_another_seat_than_it_was_sent_to_is_lost() -> None:
    evidence = a_sound_demo()
    completions = [replace(c, seat="t") if c.trigger == "m1" else c for c in evidence.completions]
    assert judge(replace(evidence, completions=completions)).lost == 1


def test_a_re_run_sends_the_same_mail_which_counts_once() -> None:
    evidence = a_sound_demo()
    again = run("r6", "n3:c", 3, 220, 221, trigger="m4", sent=["x1"])
    verdict = judge(replace(with_lines(evidence, *again), completions=[*evidence.completions, done("m4", 221.1)]))
    assert verdict.sent == 5


def test_a_run_that_began_after_the_completion_was_written_ran_twice() -> None:
    verdict = judge(with_lines(a_sound_demo(), *run("r6", "n3:c", 3, 215.2, 216, trigger="m3")))
    assert verdict.ran_twice == 1
    assert only_problem(verdict) == "message m3 ran again at seat s 0.100 s after it was finished"


def test_a_run_that_began_before_the_completion_was_written_did_not_run_twice() -> None:
    evidence = a_sound_demo()
    late = [replace(c, written_at=WALL + 114.0) if c.trigger == "m2" else c for c in evidence.completions]
    assert judge(replace(evidence, completions=late)).ran_twice == 0


def test_a_repeat_that_no_fault_explains_is_a_problem() -> None:
    evidence = a_sound_demo()
    lines = [
        *run("r6", "n3:c", 3, 220, 221, trigger="m4", is_cut=True),
        *run("r7", "n3:c", 3, 222, 223, trigger="m4"),
    ]
    verdict = judge(replace(with_lines(evidence, *lines), completions=[*evidence.completions, done("m4", 223.1)]))
    assert only_problem(verdict) == "message m4 ran again at seat s although no fault had cut it short"
    assert "m4" not in verdict.rerun_after_cut


def test_a_run_whose_record_was_lost_with_its_node_may_run_again() -> None:
    evidence = a_sound_demo()
    lines = list(evidence.lines["s"])
    ended_just_before_the_kill = [
        replace(line, phase="end") if line.run == "r2" and line.boottime == KILL_AT else line for line in lines
    ]
    verdict = judge(replace(evidence, lines={**evidence.lines, "s": ended_just_before_the_kill}))
    assert verdict.ok
    assert verdict.rerun_after_cut == ("m2", "m3")


def test_a_repeat_in_the_shadow_of_a_broker_restart_is_explained() -> None:
    evidence = a_sound_demo()
    lines = [*run("r6", "n3:c", 3, 300.2, 300.7, trigger="m4"), *run("r7", "n3:c", 3, 312, 313, trigger="m4")]
    verdict = judge(replace(with_lines(evidence, *lines), completions=[*evidence.completions, done("m4", 313.1)]))
    assert verdict.ok
    assert "m4" in verdict.rerun_after_cut


def test_two_owners_at_once_are_counted_and_named() -> None:
    evidence = a_sound_demo()
    woken = run("r4", "n2:b", 2, 199.8, 214.8, trigger="m3", is_cut=True)
    lines = [line for line in evidence.lines["s"] if line.run not in ("r4", "r5")]
    verdict = judge(
        replace(
            evidence, lines={**evidence.lines, "s": [*lines, *woken, *run("r5", "n3:c", 3, 214.5, 215, trigger="m3")]}
        )
    )
    assert verdict.owners_at_once_max == 2
    assert any("seat s was run by n2:b and n3:c at once" in problem for problem in verdict.problems)


def test_a_run_without_an_end_lasts_to_its_last_line_and_no_longer() -> None:
    evidence = a_sound_demo()  # r4 has no end: it lasts to 200, and n3's run at 214.5 overlaps nothing
    assert judge(evidence).owners_at_once_max == 1


def test_one_line_of_a_thawed_program_inside_another_owners_run_is_an_overlap() -> None:
    evidence = a_sound_demo()
    late = Line("s", ("m3",), "r4", "n2:b", 2, WALL + 214.7, 214.7, "tick")
    verdict = judge(with_lines(evidence, late))
    assert verdict.owners_at_once_max == 2
    assert verdict.stale_epoch_writes == 1


def test_two_runs_of_one_owner_at_once_are_not_two_owners() -> None:
    evidence = a_sound_demo()
    lines = [*run("r6", "n3:c", 3, 220, 222, trigger="m4"), *run("r7", "n3:c", 3, 221, 223, trigger="m5")]
    verdict = judge(
        replace(with_lines(evidence, *lines), completions=[*evidence.completions, done("m4", 222.1), done("m5", 223.1)])
    )
    assert verdict.owners_at_once_max == 1


def test_runs_that_only_touch_do_not_overlap() -> None:
    evidence = a_sound_demo()
    verdict = judge(with_lines(evidence, *run("r0", "n0:z", 0, 80, 90, trigger="m0"), first=True))
    assert verdict.owners_at_once_max == 1


def test_lines_of_a_lower_epoch_after_a_higher_one_are_counted_in_the_order_of_the_file() -> None:
    evidence = a_sound_demo()
    stale = [Line("s", ("m3",), "r4", "n2:b", 2, WALL + at, at, "tick") for at in (230.0, 230.1)]
    verdict = judge(with_lines(evidence, *stale))
    assert verdict.stale_epoch_writes == 2
    assert any(problem == "seat s wrote at epoch 2 after epoch 3: r4" for problem in verdict.problems)


def test_one_epoch_with_two_owners_is_a_problem() -> None:
    evidence = a_sound_demo()
    verdict = judge(
        replace(
            with_lines(evidence, *run("r6", "n1:d", 3, 230, 231, trigger="m4")),
            completions=[*evidence.completions, done("m4", 231.1)],
        )
    )
    assert only_problem(verdict) == "seat s has epoch 3 with two owners: n3:c, n1:d"


def test_the_takeover_is_the_longest_over_the_seats_the_node_held() -> None:
    evidence = a_sound_demo()
    slow = [
        *run("u1", "n1:a", 1, 95, 96, trigger="u1", seat="u"),
        *run("u2", "n3:c", 2, 117.25, 118, trigger="u2", seat="u"),
    ]
    never_again = run("v1", "n1:a", 1, 95, 96, trigger="v1", seat="v")
    verdict = judge(replace(evidence, lines={**evidence.lines, "u": slow, "v": never_again}))
    assert verdict.takeover_s == {"killed": 17.25, "parent_killed": 15.5, "frozen": 14.5}


def test_a_restarted_incarnation_of_the_same_node_is_another_owner() -> None:
    evidence = a_sound_demo()
    back = [
        *run("r2", "n1:a", 1, 99.5, KILL_AT, trigger="m2", is_cut=True),
        *run("r3", "n1:e", 2, 113, 114, trigger="m2"),
    ]
    assert judge(replace(evidence, lines={**evidence.lines, "s": back})).takeover_s["killed"] == 13.0


def test_a_fault_after_which_nobody_took_over_is_a_problem() -> None:
    evidence = a_sound_demo()
    lines = [line for line in evidence.lines["s"] if line.run != "r5"]
    verdict = judge(replace(evidence, lines={**evidence.lines, "s": lines}))
    assert verdict.takeover_s["frozen"] is None
    assert only_problem(verdict) == "no seat of n2 was seen to be taken over after the node was frozen"


def test_mail_left_in_a_stream_is_a_problem() -> None:
    verdict = judge(replace(a_sound_demo(), waiting={"s": 0, "t": 2}))
    assert only_problem(verdict) == "2 messages for seat t still wait in the stream"


@pytest.mark.parametrize("outcome", ["failed", "blocked", "stopped"])
def test_work_that_did_not_end_well_is_a_problem(outcome: str) -> None:
    evidence = a_sound_demo()
    completions = [replace(c, outcome=outcome) if c.trigger == "m1" else c for c in evidence.completions]
    assert only_problem(judge(replace(evidence, completions=completions))) == f"message m1 ended as {outcome} at seat s"


def test_a_demo_without_mail_or_faults_proves_nothing() -> None:
    verdict = judge(Evidence(nodes=3, seats=["s"], lines={}, sends=[], completions=[]))
    assert not verdict.ok
    assert verdict.problems == (
        "no mail was sent",
        "no node was killed",
        "no node was killed with its parent",
        "no node was frozen",
        "no broker member was restarted",
    )


def test_what_the_demo_complains_of_is_a_problem() -> None:
    assert (
        only_problem(judge(replace(a_sound_demo(), complaints=["process 7 was left behind"])))
        == "process 7 was left behind"
    )
