"""Draws the timeline of a step with Matplotlib, which the extra [plot] installs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import floor, inf, log2
from typing import Any

from gradcore.events import Record
from gradcore.folds import summed
from gradcore.grouping import alike
from gradcore.reading import short_path
from gradcore.report.timeline import COLORS, columns, phases, stacking
from gradcore.units import count_of, format_bytes

#: The most layers, ops or lines with a band of their own; the others share one.
_BANDS = 9


def plot(records: Sequence[Record], by: str = "role", ax: Any = None) -> Any:
    """Live allocated bytes over the step, stacked by ``role``, ``layer``, ``op`` or ``line``, with its peak and the begins of
    phases marked.

    Of many layers, those whose paths differ in one number share a band if they have as many bytes at most.

    Returns the Axes, by default new ones. Raises ImportError with the install command if Matplotlib is missing, and
    ValueError for a log without records.
    """
    try:
        import matplotlib.pyplot as plt
        from matplotlib.ticker import FuncFormatter, MultipleLocator
    except ImportError as error:
        raise ImportError("recording.plot() needs Matplotlib: pip install 'gradcore[plot]'") from error
    shown = columns(records, by, 1500)
    if not shown:
        raise ValueError("the recording has no records to plot")
    if ax is None:
        ax = plt.figure(figsize=(9, 4.5), layout="constrained").add_subplot()
    names = stacking(shown, by)
    if by == "layer" and len(names) > _BANDS:
        equal = alike([(name, max(c.sums.get(name, 0) for c in shown)) for name in names], _BANDS)
        band_of = {names[place]: band for band, _, places in equal for place in places}
        # A layer may be named like a range of others.
        shown = [replace(c, sums=summed((band_of[name], nbytes) for name, nbytes in c.sums.items())) for c in shown]
        names = stacking(shown, by)
    largest = sorted(names, key=lambda name: -max(c.sums.get(name, 0) for c in shown))[:_BANDS + (by == "role")]
    bands = {name or "(root)": [c.sums.get(name, 0) for c in shown] for name in names if name in largest}
    rest = [c.allocated - sum(c.sums.get(name, 0) for name in largest) for c in shown]
    if any(rest):
        # Not a layer's name: that of a layer may be "others".
        bands[count_of(len(names) - len(largest), "other")] = rest
    colors = [COLORS[name] if by == "role" and name in COLORS else spare
               for name, spare in zip(bands, COLORS.values(), strict=False)]
    at = [c.position for c in shown]
    if bands:
        labels = [short_path(name) if by == "line" else name for name in bands]
        # Of a label that begins with an underscore a legend says nothing.
        labels = [f" {label}" if label.startswith("_") else label for label in labels]
        ax.stackplot(at, list(bands.values()), labels=labels, colors=colors, step="post", linewidth=0)
        ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), reverse=True, frameon=False)
    else:
        ax.text(0.5, 0.5, "nothing was live in this step", transform=ax.transAxes, ha="center", va="center")
    highest = next(c for c in shown if c.peak)
    ax.plot([highest.position], [highest.allocated], "v", color="black", clip_on=False)
    # On the side of the mark where the plot has room.
    side = "left" if highest.position * 4 < at[0] + at[-1] * 3 else "right"
    ax.annotate(f"peak {format_bytes(highest.allocated)}", (highest.position, highest.allocated),
                (6 if side == "left" else -6, 4), textcoords="offset points", ha=side)
    ax.set(xlabel="record of the step's log", ylabel="live bytes, as allocated", xlim=(at[0], at[-1]), ylim=(0, None))
    ax.margins(y=0.1)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda nbytes, _: format_bytes(nbytes)))
    # Three to six ticks, at powers of two as the units are: 8.00 MiB, and not the 9.54 of ten million bytes.
    ax.yaxis.set_major_locator(MultipleLocator(2 ** floor(log2(max(highest.allocated, 3) / 3))))
    begins: list[tuple[int, str]] = []
    named = -inf
    for label, position in phases(records):
        # Of phases that follow each other too closely, the first is named.
        fits = position - named >= (at[-1] - at[0]) / 8
        begins.append((max(position, at[0]), label if fits else ""))
        named = position if fits else named
    ax.secondary_xaxis("top").set_xticks([x for x, _ in begins], [label for _, label in begins])
    return ax
