"""A recording: a step's report together with the records that it was computed from, as data, pictures and files."""

from __future__ import annotations

import os
import reprlib
from dataclasses import dataclass
from typing import Any, Protocol

from gradcore.events import Record
from gradcore.report.packed import pack, unpack
from gradcore.report.step import StepReport, load_report


class Recorded(Protocol):
    """An object with a recording, such as a :class:`gradcore.step` that has ended."""

    @property
    def recording(self) -> Recording: ...


@dataclass(frozen=True, repr=False)
class Recording:
    """A step's report with the records that it was computed from."""

    report: StepReport
    records: tuple[Record, ...]

    def __repr__(self) -> str:
        return f"<recording of {self.report!r}>"

    @property
    def recording(self) -> Recording:
        """Itself: a run takes a recording as it takes a step."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as docs/report-schema.md describes it."""
        return {"kind": "recording", "report": self.report.to_dict(), "log": pack(self.records)}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Recording:
        """The recording from the data that :meth:`to_dict` wrote. Raises ValueError for other data."""
        if not isinstance(data, dict) or data.get("kind") != "recording":
            raise ValueError(f"expected a recording, but got {reprlib.repr(data)}")
        return Recording(load_report(data.get("report", {})), tuple(unpack(data.get("log", {}))))

    def plot(self, by: str = "role", ax: Any = None) -> Any:
        """Plot live bytes over the step, stacked by ``role``, ``layer``, ``op`` or ``line``, on Matplotlib Axes, which are
        returned.

        Raises ImportError with the install command if Matplotlib is missing.
        """
        from gradcore.report.plot import plot

        return plot(self.records, by, ax)

    def export(self, path: str | os.PathLike[str], format: str) -> None:
        """Write ``snapshot`` (for pytorch.org/memory_viz), ``trace`` (for ui.perfetto.dev), ``csv`` or ``json``.

        Raises ValueError for another format and for a recording without records, OSError if the file cannot be written.
        """
        from gradcore.report.exports import export

        export(self, path, format)

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write the step as one page that opens from disk: timeline, owners, address map. Raises OSError."""
        from gradcore.report.html import of_recording, save

        save(path, of_recording(self))

    def _repr_html_(self) -> str:
        from gradcore.report.html import frame, of_recording

        return frame(of_recording(self))
