"""The pytest plugin's figures do not depend on earlier tests; leaks have holders, and a test on another device a message."""

from __future__ import annotations

from typing import Any

import gradcore
from gradcore import nn
from gradcore.testing.account import Account, DeviceMemory
from tests.host.commands.test_pytest_plugin import HEAD, lines, run  # noqa: F401 - the fixture

pytest_plugins = ["pytester"]


def test_garbage_of_earlier_tests_makes_no_room(run: Any) -> None:  # noqa: F811
    result = run(HEAD + """
import gc
gc.disable()

def test_earlier():
    x = [gradcore.ones(1_000_000)]
    x.append(x)

@pytest.mark.limit_device_memory("1 kB")
def test_it_is_collected():
    gc.collect()
    x = gradcore.ones(900_000)

def test_earlier_again():
    x = [gradcore.ones(1_000_000)]
    x.append(x)

@pytest.mark.limit_device_leaks("0 B")
def test_a_leak(pytestconfig):
    gc.collect()
    pytestconfig.kept = gradcore.ones(800_000)

def test_that_fails():
    x = gradcore.ones(1_000_000)
    assert not x.shape

@pytest.mark.limit_device_memory("1 kB")
def test_its_traceback_goes():
    x = gradcore.ones(700_000)

def test_earlier_for_the_fixture():
    x = [gradcore.ones(1_000_000)]
    x.append(x)

def test_the_fixture(device_memory):
    gc.collect()
    assert device_memory.live_allocated == 0
""")
    result.assert_outcomes(passed=4, failed=4)
    lines(result, "device memory on cpu: the peak is 3,600,384 bytes above *",
          "device memory on cpu: 3,200,000 bytes more are live *",
          "device memory on cpu: the peak is 2,800,128 bytes above *")


def test_a_test_of_another_device_is_warned_of(run: Any) -> None:  # noqa: F811
    source = HEAD + """
@pytest.mark.limit_device_memory("1 MB")
def test_not_where_it_is_accounted():
    gradcore.ones(10**6)

@pytest.mark.limit_device_memory("1 MB")
def test_here(gradcore_device):
    gradcore.ones(10, device=gradcore_device)

@pytest.mark.limit_device_memory("1 MB")
def test_here_and_elsewhere(gradcore_device):
    gradcore.ones(10**6)
    gradcore.ones(10, device=gradcore_device)

@pytest.mark.limit_device_leaks("0 B")
def test_nowhere():
    pass
"""
    told = ("*PytestWarning: test_not_where_it_is_accounted is accounted on meta, and allocated nothing there, but on cpu: its "
            "limits say nothing of that. Make its tensors on the fixture gradcore_device, or choose another --gradcore-device "
            "than meta")
    result = run(source, "--gradcore-device", "meta", "-W", "default")
    result.assert_outcomes(passed=4, warnings=1)
    lines(result, told)
    run(None, "--gradcore-device", "meta").assert_outcomes(passed=3, failed=1)
    run(None).assert_outcomes(passed=2, failed=2)


def test_what_holds_a_leak_is_named_as_the_test_names_it(run: Any) -> None:  # noqa: F811
    result = run("import unittest\n" + HEAD + """
@pytest.fixture(scope="module")
def box():
    return {}

@pytest.mark.limit_device_leaks("0 B")
def test_in_a_fixture(box):
    box["x"] = gradcore.ones(10)

class TestMethods:
    @pytest.mark.limit_device_leaks("0 B")
    def test_in_the_instance(self):
        self.x = gradcore.ones(10)

class TestCase(unittest.TestCase):
    def setUp(self):
        self.x, self.y = gradcore.ones(10), gradcore.ones(1000)

    def tearDown(self):
        del self.y

    @pytest.mark.limit_device_leaks("0 B")
    @pytest.mark.limit_device_memory("1 kB")
    def test_in_a_case(self):
        self.assertEqual(self.x.shape, (10,))

# The garbage collector is on.
@pytest.mark.limit_device_leaks("0 B")
def test_in_a_cycle():
    x = [gradcore.ones(10)]
    x.append(x)
""")
    result.assert_outcomes(failed=4)
    lines(result, "                         held by box['x'] in the fixtures of test_in_a_fixture",
          "                         held by self.x in TestMethods.test_in_the_instance()",
          "device memory on cpu: the peak is 4,608 bytes *", "device memory on cpu: 512 bytes more are live *",
          "                         held by self.x in TestCase.test_in_a_case()",
          "                         held by a reference cycle of containers, which only gc.collect() frees")


def test_a_layer_has_one_name_before_the_beginning_and_since() -> None:
    one, two = nn.Sequential(nn.Linear(8, 8)), nn.Sequential(nn.Linear(8, 8))
    x = gradcore.ones(2, 8)
    one(x), two(x)
    account = Account("cpu")
    try:
        memory = DeviceMemory(account)
        two(x).sum().backward()
        report = memory.report
        # The layer's parameters, their gradients, and what it keeps of its input.
        rows = {name: nbytes for name, nbytes in report.by_layer.items() if name.endswith("0")}
        assert "0" not in rows and sorted(rows.values())[-1] >= 4 * 512
        assert {h.tag.layer for h in memory.stretch.made_at_peak()} >= {"0"}, "which no network of another test changes"
    finally:
        account.close()
