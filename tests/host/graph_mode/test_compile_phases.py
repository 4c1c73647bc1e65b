"""The phases of a replay, as its log has them: those of the eager run, with as much live in them."""

from __future__ import annotations

from typing import Any

import gradcore
from gradcore import folds, nn
from gradcore.events import Launch, Mark
from tests.host.graph_mode.test_compile import data, net, step_of
from tests.host.graph_mode.test_places import places_taken


def test_a_replay_of_what_was_traced_outside_a_step_has_the_phases_and_the_live_bytes_of_eager() -> None:
    found, ends = [], []
    for wrap in (lambda f: f, gradcore.compile):
        model = net()
        run = wrap(step_of(model, gradcore.optim.SGD(model.parameters(), lr=0.05)))
        for k in range(2):
            run(*data(k))
        run(*data(2))
        x, y = data(2)
        held = gradcore.memory_requested()
        with gradcore.step() as s:
            run(x, y)
        # If a result overwrites an operand, that many fewer bytes are live.
        less = places_taken(s.log) if wrap is not gradcore.compile else {
            run.programs[0].buffers[b].first: run.programs[0].buffers[b].nbytes for b in run.plans[0].shared}
        launches = [(r, now) for r, now in zip(s.log, folds.timeline(s.log), strict=True) if isinstance(r, Launch)]
        found.append([(r.tag.op, r.tag.layer, r.tag.phase, now.requested - held + less.get(k, 0))
                      for k, (r, now) in enumerate(launches)])
        ends.append([(p.phase, p.requested - held) for p in s.report.phases])
        del run, model
    assert ends[0] == ends[1]
    assert less and found[0] == found[1] and {phase for _, _, phase, _ in found[1]} == {"forward", "backward", "optimizer"}


def test_each_phase_of_a_replay_begins_and_ends_also_without_an_op_in_it() -> None:
    weight, other = nn.Parameter(gradcore.ones(3)), nn.Parameter(gradcore.ones(3))
    optimizer, idle = (gradcore.optim.SGD([p], lr=0.1) for p in (weight, other))

    def training(x: Any) -> None:
        idle.step()
        optimizer.zero_grad()
        (weight * x).sum().backward()
        optimizer.step()
        idle.step()

    layer = nn.Linear(3, 3)
    for function, then in ((training, lambda y: None), (layer, lambda y: None), (layer, lambda y: y.sum().backward())):
        phases = []
        for run in (function, gradcore.compile(function)):
            for _ in range(4):
                with gradcore.step() as s:
                    then(run(gradcore.ones(3)))
            phases.append([(mark.what, mark.label) for mark in s.log if isinstance(mark, Mark)])
        assert phases[0] == phases[1] and len(run.programs) == 1
