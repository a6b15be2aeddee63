"""A small world for one agent's record: its beats, two users who stop one of its jobs each and send mail, an observer.

The decisions are `next_beat`, `with_mail`, `is_fenced` and `declare_dead` of `protocol/`. There is no repair interval
here, so that mail that is lost stays lost. A beat is in flight only while the record is the one that it expects.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from fray_coordinator.protocol.failure_detection import declare_dead
from fray_coordinator.protocol.heartbeat import (
    HeartbeatInput,
    is_fenced,
    next_beat,
    with_mail,
)
from fray_layouts.records import Resources
from tests.model.essence import Beat, agent_essence, agent_record
from tests.model.explorer import Step


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that can be switched off, one at a time."""

    jobs_read_after_clearing: bool = True
    flag_before_mail: bool = True
    superseded_is_not_applied: bool = True
    own_late_beat_recognised: bool = True


class Mail(NamedTuple):
    """A state.

    `phase` of the agent: idle, sent (it waits for the outcome of a beat), read (its jobs), gone. `fresh`: it knows the
    record as it is; `took`: the body of its last beat took mail, so its jobs are to be read once that is applied.
    `flying`: the beat may land; `fate` of the last beat: "", applied, superseded. `late`: a beat that it gave up on
    landed afterwards. `flags`: which jobs are to stop; `read`: what the agent knows of them.
    """

    record: Beat = Beat()
    phase: str = "idle"
    fresh: bool = True
    took: bool = False
    flying: bool = False
    fate: str = ""
    late: bool = False
    senders: tuple[str, str] = ("start", "start")
    flags: tuple[bool, bool] = (False, False)
    read: tuple[bool, bool] = (False, False)
    faults: frozenset[str] = frozenset()


class MailWorld:
    """The steps under `rules`."""

    def __init__(self, rules: Rules, *faults: str) -> None:
        self.rules = rules
        self.start = Mail(faults=frozenset(faults))

    def good(self, w: Mail) -> bool:
        return w.record.state != "live" or (set(w.senders) == {"done"} and w.read == w.flags)

    def steps(self, w: Mail) -> Iterator[Step[Mail]]:
        if w.flying:
            fate = "applied" if w.phase == "sent" else ""
            known = w.record._replace(state="live")  # as the agent knows it, or takes it to be
            landed = self._written(w, agent_essence(next_beat(agent_record("A", known), PULSE)))
            yield Step("the beat lands", landed._replace(flying=False, fate=fate, late=w.phase != "sent"))
        yield from self._agent(w)
        for who in (0, 1):
            yield from self._sender(w, who)
        body = agent_record("A", w.record)
        if "death" in w.faults and (dead := declare_dead(body, body.beat)) is not None:
            after = self._written(w, agent_essence(dead))._replace(faults=w.faults - {"death"})
            yield Step("an observer declares it dead", after, fault=True)

    def _written(self, w: Mail, record: Beat) -> Mail:
        """After another write of the record, a beat on its way is rejected, and an applied beat is superseded."""
        fate = "superseded" if w.fate == "applied" else w.fate
        return w._replace(record=record, fresh=False, flying=False, fate=fate, late=False)

    def _agent(self, w: Mail) -> Iterator[Step[Mail]]:
        match w.phase:
            case "idle":
                took = self.rules.jobs_read_after_clearing and (w.took or (w.fresh and w.record.mail))
                yield Step("the agent sends a beat", w._replace(phase="sent", flying=w.fresh, took=took, fate=""))
            case "sent" if w.flying:
                if "silence" in w.faults:
                    gave_up = w._replace(phase="idle", faults=w.faults - {"silence"})
                    yield Step("the agent gives up on its beat", gave_up, fault=True)
            case "sent":
                yield self._outcome(w)
            case "read":
                yield Step("the agent reads its jobs", w._replace(phase="idle", read=w.flags, took=False))

    def _outcome(self, w: Mail) -> Step[Mail]:
        applied = w.fate == "applied" or (w.fate == "superseded" and not self.rules.superseded_is_not_applied)
        if applied:
            next_phase = "read" if w.took else "idle"
            return Step(f"the agent takes its beat as applied ({w.fate})", w._replace(phase=next_phase, fresh=True))
        if is_fenced(agent_record("A", w.record)):
            return Step("the agent stops for ever", w._replace(phase="gone"))
        if w.late and not self.rules.own_late_beat_recognised:
            return Step(
                "the agent meets a writer it does not know", w, breaks="a live agent stops by its own late beat"
            )
        seen = w._replace(phase="idle", fresh=True, fate="", late=False)
        if not self.rules.jobs_read_after_clearing and w.record.mail:
            return Step("the agent reads its jobs, and clears the mail later", seen._replace(read=w.flags, took=False))
        return Step("the agent reads its record", seen)

    def _sender(self, w: Mail, who: int) -> Iterator[Step[Mail]]:
        order = ["flag", "mail"] if self.rules.flag_before_mail else ["mail", "flag"]
        steps = dict(zip(["start", "half"], order, strict=True))
        now = w.senders[who]
        if now == "done":
            return
        after = w._replace(senders=_put(w.senders, who, "half" if now == "start" else "done"))
        if steps[now] == "flag":
            yield Step(f"sender {who} flags its job", after._replace(flags=_put(w.flags, who, True)))
        elif (mailed := with_mail(agent_record("A", w.record))) is not None:
            yield Step(f"sender {who} mails", self._written(after, agent_essence(mailed)))
        else:
            yield Step(f"sender {who} finds unread mail, or nobody", after)


PULSE = HeartbeatInput({}, 5.0, Resources())


def _put(values: tuple[Any, Any], place: int, value: Any) -> tuple[Any, Any]:
    return (value, values[1]) if place == 0 else (values[0], value)
