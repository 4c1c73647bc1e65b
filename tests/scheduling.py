"""Scheduling of tests by pytest-xdist: marked groups stay together, and other tests of a file run in units of sixteen."""

from __future__ import annotations

from itertools import groupby

from xdist.scheduler import LoadGroupScheduling

#: Tests in a unit. xdist counts a worker's finished units after every test, so thirty thousand units would cost minutes.
RUN = 16


class Runs(LoadGroupScheduling):
    """``--dist loadgroup`` with fewer units: tests without a group share one with their neighbours."""

    _runs: dict[str, str] | None = None

    def _split_scope(self, nodeid: str) -> str:
        scope: str = super()._split_scope(nodeid)
        if scope != nodeid:
            return scope
        if self._runs is None:
            assert self.collection is not None
            self._runs = {test: f"{file} {k // RUN}" for file, tests in groupby(self.collection, lambda n: n.partition("::")[0])
                          for k, test in enumerate(tests)}
        return self._runs[nodeid]
