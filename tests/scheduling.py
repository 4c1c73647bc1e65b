"""How pytest-xdist hands out tests: groups as they are marked, and the other tests of a file in runs of sixteen."""

from __future__ import annotations

from itertools import groupby

from xdist.scheduler import LoadGroupScheduling

#: xdist counts a worker's finished units again after every test, so that thirty thousand units of one test cost minutes.
RUN = 16


class Runs(LoadGroupScheduling):
    """``--dist loadgroup`` with fewer units: a test without a group goes with its neighbours."""

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
