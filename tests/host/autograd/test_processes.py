"""Processes that fork while other threads work: the child continues without these threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from gradcore import forking

FORKED = """
import os, signal, sys, threading
import gradcore

def step():
    x = gradcore.ones(4, 4, requires_grad=True)
    y = (x * x).sum()
    y.backward()
    return y.detach().numpy() + x.grad.numpy().sum() + gradcore.memory_allocated()

def work():
    while going:
        step()

going = True
sys.setswitchinterval(1e-5)
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
failed = 0
for _ in range(40):
    child = os.fork()
    if not child:
        # A lock that is held by a thread that is not there would never come free.
        signal.alarm(20)
        step()
        with gradcore.step() as recorded:
            step()
        assert recorded.report.peak.allocated
        os._exit(0)
    failed += os.waitpid(child, 0)[1] != 0
    if failed:
        break
going = False
for thread in threads:
    thread.join()
assert not failed
"""


WITHIN = """
import os
import gradcore

with gradcore.step() as step:
    x = gradcore.ones(1000)
    child = os.fork()
    if not child:
        with gradcore.step() as own:
            gradcore.ones(2000)
        assert own.report.peak.requested - gradcore.memory_requested() == 8000
    y = gradcore.ones(500)
# The child may go on in the parent's step.
assert step.report.by_op["full"] == (12288 if child == 0 else 6144), step.report.by_op
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("program", [FORKED, WITHIN], ids=["FORKED", "WITHIN"])
def test_a_child_needs_no_lock_and_no_step_of_its_parents(program: str) -> None:
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr[-2000:]


def test_a_fork_waits_for_a_thread_that_holds_one_lock_and_waits_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    outer, inner, held, forks = forking.Lock(), forking.Lock(), threading.Event(), threading.Event()
    # The one that the other thread waits for is the first that a fork takes.
    monkeypatch.setattr(forking, "_brief", [inner, outer])

    def work() -> None:
        with outer:
            held.set()
            forks.wait()
            # By now the fork waits.
            threading.Event().wait(0.05)
            with inner:
                pass

    def fork() -> None:
        held.wait()
        forks.set()
        forking._before()
        forking._after()

    threads = [threading.Thread(target=f, daemon=True) for f in (work, fork)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
