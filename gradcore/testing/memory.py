"""What one test makes on every device: how much was live at once, whose it was, and what is live still."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gradcore import folds
from gradcore._random import default_generator
from gradcore.devices.availability import cuda_status
from gradcore.devices.device import Device, devices, get_device
from gradcore.events import TAGS, Alloc, Drop, Free, Keep, Raw, Record, Retag, typed
from gradcore.folds import Holder
from gradcore.report.growth import line_of
from gradcore.report.text import short_path
from gradcore.units import format_bytes

#: Lines of a text that names owners.
_ROWS = 10


@dataclass(frozen=True)
class Measured:
    """The peak of a test on a device: bytes, the allocation that reached it, and who was live there."""

    device: str
    requested: int
    allocated: int
    reached_by: str
    holders: tuple[Holder, ...]

    def __str__(self) -> str:
        if not self.holders:
            return f"nothing was live on {self.device}"
        return "\n".join([f"the peak on {self.device} was reached by {self.reached_by}, where these were live:",
                          *owners(self.holders)])


def owners(holders: Iterable[Holder]) -> list[str]:
    """Lines that say who holds how much, by role, op, layer and line of source, the largest first."""
    sums: dict[str, list[int]] = {}
    for h in holders:
        who = f"{h.role:15} {h.tag.op} in {h.tag.layer or '(root)'}, {short_path(line_of(h.tag))}"
        sums.setdefault(who, []).append(h.allocated)
    rows = sorted(sums.items(), key=lambda row: (-sum(row[1]), row[0]))
    lines = [f"  {format_bytes(sum(sizes)):>10}  {who}" + (f", {len(sizes)} buffers" if len(sizes) > 1 else "")
             for who, sizes in rows[:_ROWS]]
    rest = rows[_ROWS:]
    return lines + ([f"  {format_bytes(sum(map(sum, (s for _, s in rest)))):>10}  {len(rest)} more"] if rest else [])


class Watch:
    """Records what is allocated between :meth:`begin` and :meth:`end`, around any step that is recorded meanwhile."""

    def __init__(self) -> None:
        self._logs: list[tuple[Device, list[Raw], int]] = []

    def begin(self) -> None:
        # A device that is first used inside is watched from its first byte.
        names = ["cpu", "meta", *(["cuda"] if cuda_status().available else [])]
        for device in dict.fromkeys([*map(get_device, names), *devices()]):
            # The default generator lives as long as the process; made here, it is no test's.
            default_generator(device)
            log = device.ledger.begin_log()
            self._logs.append((device, log, len(log)))

    def end(self) -> None:
        for device, _, _ in self._logs:
            device.ledger.end_log()

    def measured(self, whole: bool = False) -> Measured:
        """The device with the highest peak; with ``whole`` what was live at the beginning counts too."""
        found = [_measured(device.name, [typed(r) for r in log] if whole else _made(log, opening), opening if whole else 0)
                 for device, log, opening in self._logs]
        return max(found, key=lambda m: m.allocated, default=Measured("cpu", 0, 0, "", ()))

    def live(self) -> list[tuple[str, list[Holder]]]:
        """By device, what was made since the beginning and is live now."""
        found = []
        for device, log, opening in self._logs:
            made = {r.serial for r in _made(log, opening) if isinstance(r, Alloc)}
            found.append((device.name, [Holder(b.serial, b.requested, b.size, TAGS[b.tag], b.node, ((0, ""),) * bool(b.keeps))
                                        for b in device.ledger.live.values() if b.serial in made]))
        return found


class DeviceMemory:
    """The fixture ``device_memory``: bytes that the test has made so far, rounded as the pool rounds them.

    What a step makes that is being recorded is counted when that step has ended.
    """

    def __init__(self, watch: Watch, device: Device) -> None:
        self._watch = watch
        #: The device that ``--gradcore-device`` names, for the test to make its tensors on.
        self.device = device

    @property
    def live(self) -> int:
        """Bytes that the test has made and that are live."""
        return sum(h.allocated for _, holders in self._watch.live() for h in holders)

    @property
    def peak(self) -> int:
        """The most bytes of the test's own that were live at once on one device."""
        return self._watch.measured().allocated

    def __str__(self) -> str:
        return str(self._watch.measured())


def _made(log: list[Raw], opening: int) -> list[Record]:
    """The records of what was allocated after the log's opening."""
    records = [typed(r) for r in log[opening:]]
    own = {r.serial for r in records if isinstance(r, Alloc)}
    return [r for r in records if not isinstance(r, (Free, Keep, Drop, Retag)) or r.serial in own]


def _measured(device: str, records: list[Record], start: int) -> Measured:
    peak = folds.peak(records, max(start - 1, 0))
    if not peak.allocated:
        return Measured(device, 0, 0, "", ())
    last = next(r for r in reversed(records[:peak.position + 1]) if isinstance(r, Alloc))
    return Measured(device, peak.requested, peak.allocated,
                    f"{last.tag.op} in {last.tag.layer or '(root)'}, {short_path(line_of(last.tag))}",
                    tuple(folds.live_at(records, peak.position)))
