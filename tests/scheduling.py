"""Scheduling of tests by pytest-xdist: marked groups stay together, and other tests of a file run in units of sixteen."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

from xdist.scheduler import LoadGroupScheduling

#: Tests in a unit, and so between two messages to a worker.
RUN = 16
#: The group of a file. Since pytest 9.2, xdist 3.8 cannot append it to the names of tests, and each worker would run a part.
GROUP = re.compile(r'^pytestmark = \[[^\]]*\bxdist_group\("(\w+)"\)', re.MULTILINE)


class Runs(LoadGroupScheduling):
    """``--dist loadgroup`` with fewer units: tests without a group share one with their neighbors."""

    _runs: dict[str, str] | None = None
    _places: dict[str, int] | None = None

    def _split_scope(self, nodeid: str) -> str:
        scope: str = super()._split_scope(nodeid)
        if scope != nodeid:
            return scope
        if self._runs is None:
            assert self.collection is not None
            self._runs = {}
            for file, tests in groupby(self.collection, lambda n: n.partition("::")[0]):
                group = GROUP.search((self.config.rootpath / file).read_text(encoding="utf-8"))
                self._runs |= {test: group[1] if group else f"{file} {k // RUN}" for k, test in enumerate(tests)}
        return self._runs[nodeid]

    def _assign_work_unit(self, node: Any) -> None:
        """As xdist's, which looks through all tests for each of a unit's, and after every test counts finished units too."""
        if self._places is None:
            assert self.collection is not None
            self._places = {test: k for k, test in enumerate(self.collection)}
        scope, unit = self.workqueue.popitem(last=False)
        left = {name: tests for name, tests in self.assigned_work.get(node, {}).items() if not all(tests.values())}
        self.assigned_work[node] = {**left, scope: unit}
        node.send_runtest_some([self._places[test] for test, done in unit.items() if not done])
