"""Processes that fork while other threads work: the child continues without these threads."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_needs_no_lock_of_its_parents_threads() -> None:
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr[-2000:]
