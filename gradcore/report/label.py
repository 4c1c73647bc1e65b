"""Writes the owner of a buffer as frames of a PyTorch snapshot, and parses these."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from gradcore.cells import name_of_file
from gradcore.events import ROLES, WRITTEN, Export, Site, Tag

_LABEL = re.compile(r"(?P<op>.*) \((?P<role>[^(),]+), layer (?P<layer>.*?), (?P<phase>[^(),]*)\)(, shared by (?P<export>.*))?",
                    re.DOTALL)
_EXPORT = re.compile(r"(?P<form>.*?), (?P<file>.*):(?P<line>\d{1,9}) in (?P<function>.*)", re.DOTALL)
#: Longer texts are not parsed, since the pattern could take very long on a crafted file.
_LONGEST = 4096


def frames_of(tag: Tag, role: str) -> list[dict[str, Any]]:
    """Stack frames, the innermost first as in PyTorch, below one whose name gives op, role, layer and phase."""
    sites = [tag.site, *tag.site.callers, *([tag.caller] if tag.caller else [])]
    what = f"{tag.op} ({role}, layer {tag.layer or '(root)'}, {tag.phase})"
    if tag.export is not None:
        what += f", shared by {tag.export}"
    return [{"filename": WRITTEN, "line": 0, "name": what},
            *({"filename": name_of_file(s.file), "line": s.line, "name": s.function} for s in sites)]


def tag_of(sites: Sequence[Site]) -> Tag | None:
    """The tag, with the role, that :func:`frames_of` wrote; None for frames of another program."""
    if len(sites) < 2 or sites[0].file != WRITTEN or len(sites[0].function) > _LONGEST:
        return None
    label = _LABEL.fullmatch(sites[0].function)
    if label is None or label["role"] not in ROLES:
        return None
    shown = _EXPORT.fullmatch(label["export"] or "")
    export = Export(shown["form"], Site(shown["file"], int(shown["line"]), shown["function"])) if shown else None
    layer = "" if label["layer"] == "(root)" else label["layer"]
    site = sites[1].called_by(sites[2:])
    return Tag(label["op"], layer, label["phase"], label["role"], site, None, None, export)
