"""Attributes that code looks up, or sets, by names which it computes, so that its instructions do not tell them."""

from __future__ import annotations

import argparse
import functools
import inspect
import typing
from collections.abc import Container, Sequence
from types import CodeType, FrameType, MemberDescriptorType, ModuleType
from typing import Any

from gradcore.engine.value import Value
from gradcore.program.guarding.bytecode import Step, steps_of
from gradcore.program.guarding.frames import by_id, line_of, parameters
from gradcore.program.guarding.guards import Guard, identical, weakly
from gradcore.program.guarding.libraries import is_of_library
from gradcore.program.guarding.names import Names, fields_of
from gradcore.program.guarding.readers import Attribute
from gradcore.program.guarding.values import asked, attributes_of, equal

#: Instructions that load a variable.
_VARIABLES = frozenset(("LOAD_FAST", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"))
#: Instructions that only put texts together, so that the constants among them are parts of what they make.
_JOINS = _VARIABLES | {"LOAD_CONST", "LOAD_ATTR", "BUILD_STRING", "FORMAT_VALUE", "FORMAT_SIMPLE", "CONVERT_VALUE",
                       "BINARY_OP"}
#: What else there is between the arguments of a call and the call.
_BETWEEN = frozenset(("PRECALL", "KW_NAMES"))

#: Code that uses one of these may look up what it is given by a name, as in reduce(getattr, path.split("."), x).
_TAKES_NAMES = frozenset(("__dict__", "vars", "getattr", "hasattr", "attrgetter"))
#: What compares or prints the attributes of a namespace, and what asks whether it has one.
_WHOLE = frozenset((argparse.Namespace.__eq__.__code__, argparse.Namespace.__repr__.__code__))
#: What asks whether an object has the attributes of a protocol, and what reads the defaults of a function for its signature.
_ASKS_FOR_ALL: CodeType = type(typing.SupportsInt).__instancecheck__.__code__
_READS_DEFAULTS: CodeType = inspect._signature_from_function.__code__  # type: ignore[attr-defined]
#: Python's own code whose calls are looked at.
LOOKING_UP = by_id((*_WHOLE, argparse.Namespace.__contains__.__code__, _ASKS_FOR_ALL, _READS_DEFAULTS))

_unknown = object()


class LookedUp:
    """Records the names of attributes by which a traced run looked something up; reasons against a replay go to ``drawn``, as
    of attributes that it set.

    ``guards`` gets one where the attribute need not be there. What is ``new`` needs none.
    """

    def __init__(self, drawn: list[str], guards: dict[tuple[str, Any], Guard], new: Container[Any]) -> None:
        self._drawn = drawn
        self._guards = guards
        self._new = new
        self._read: set[str] = set()
        self._asked: set[str] = set()

    @property
    def names(self) -> Names:
        return Names(frozenset(self._read | self._asked), asked=frozenset(self._asked))

    def enters(self, frame: FrameType) -> None:
        """Look at a call of a function of the user's, or of the namespace of a command line, which may take what it is given
        for a key of a ``__dict__``, or hand it to getattr by way of C code, or compare or print all that it has; or at one of
        what reads defaults, or asks for all attributes of a protocol."""
        code = frame.f_code
        if code in _WHOLE:
            self._read.update(_attributes(frame.f_locals["self"]))
        elif code is _ASKS_FOR_ALL:
            self._asked |= typing._get_protocol_attrs(frame.f_locals["cls"])  # type: ignore[attr-defined]
        elif code is _READS_DEFAULTS:
            if (function := frame.f_locals["func"]) not in self._new:
                for part in ("__code__", "__defaults__", "__kwdefaults__"):
                    look = Attribute(function, part)
                    name = f"{part} of {function.__name__}"
                    self._guards.setdefault((part, id(function)), Guard(name, look, look(), identical))
        elif not _TAKES_NAMES.isdisjoint(code.co_names):
            given = [x for n in parameters(code) for x in (frame.f_locals.get(n),) if isinstance(x, str)]
            self._asked.update(part for x in given for part in x.split(".") if part.isidentifier())

    def saw(self, frame: FrameType, called: Any) -> None:
        """Look at a call of a function written in C."""
        of = getattr(called, "__self__", None)
        if isinstance(of, str) and called.__name__ in ("format", "format_map"):
            self._read |= fields_of(of)
        elif called is getattr or called is hasattr:
            owner, name, default = _operands(frame.f_code, frame.f_lasti)
            if [s.opname for s in name] != ["LOAD_CONST"]:
                self._looks_up(frame, owner, name, default or called is hasattr)
        elif called is setattr or called is delattr:
            if _value(frame, _operands(frame.f_code, frame.f_lasti)[0]) not in self._new:
                self._drawn.append(f"{line_of(frame)} calls {called.__name__}(), which a replay would not do")
        elif called is vars or called is dir:
            of = _value(frame, _operands(frame.f_code, frame.f_lasti)[0])
            if of is not _unknown:
                self._reads(of, [], True)

    def _looks_up(self, frame: FrameType, owner: list[Step], name: list[Step], optional: bool) -> None:
        text = _value(frame, name)
        if isinstance(text, str):
            self._asked.add(text)
            return
        of = _value(frame, owner)
        if of is _unknown:
            self._drawn.append(f"{line_of(frame)} computes the name of an attribute: give the name a variable of its own")
        else:
            # Whatever has the parts of the name that are known.
            self._reads(of, [s.argval for s in name if s.opname == "LOAD_CONST"] if all(map(_joins, name)) else [], optional)

    def _reads(self, of: Any, parts: list[Any], optional: bool) -> None:
        """Record that all attributes with these parts of a name may be read, and whether it matters which there are."""
        if not isinstance(of, Value) and not (isinstance(of, ModuleType) and is_of_library(of.__name__)):
            self._read.update(_attributes(of, parts))
            if optional and of not in self._new:
                at = weakly(of)
                look = lambda: sorted(_attributes(at(), parts))
                self._guards.setdefault(("names", (id(of), *parts)), Guard(
                    f"which attributes a {type(of).__name__} has", look, look(), equal))


def _attributes(of: Any, parts: Sequence[Any] = ()) -> set[str]:
    """The names of an object's attributes, and of those that it has from the user's classes, in which these ``parts`` are."""
    kinds = [c for c in (of if isinstance(of, type) else type(of)).__mro__ if not is_of_library(c)]
    return {a for own in (attributes_of(of) or {}, *map(vars, kinds)) for a in own
            if not a.startswith("__") and all(str(part) in a for part in parts)}


def _joins(s: Step) -> bool:
    """Does it only put texts together: no format with a specification, and no operator but ``+``?"""
    return (s.opname in _JOINS and not (s.opname == "FORMAT_VALUE" and (s.arg or 0) & 4)
            and (s.opname != "BINARY_OP" or s.text == "+"))


def _value(frame: FrameType, steps: list[Step]) -> Any:
    """What steps load if they only load a variable, or an attribute of one."""
    if not steps or any(s.opname != "LOAD_ATTR" for s in steps[1:]):
        return _unknown
    first, *rest = steps
    if first.opname == "LOAD_CONST":
        return first.argval
    spaces = (frame.f_locals, frame.f_globals, frame.f_builtins) if first.opname in _VARIABLES else ()
    x = next((space[first.argval] for space in spaces if first.argval in space), _unknown)
    for s in rest:
        # Without a call of any code of the user's, such as a property's.
        owner, x = x, inspect.getattr_static(x, s.argval, _unknown)
        if isinstance(x, MemberDescriptorType):
            x = asked(owner, s.argval, _unknown)
        elif hasattr(type(x), "__get__"):
            return _unknown
    return x


@functools.lru_cache(maxsize=4096)
def _operands(code: CodeType, at: int) -> tuple[list[Step], list[Step], bool]:
    """What loads the first two arguments of the call that is the instruction at this offset, each as far as it is known, and
    whether there is a third."""
    *steps, call = [s for s in steps_of(code) if s.offset <= at]
    arguments: list[list[Step]] = []
    k = len(steps)
    while k > 0 and steps[k - 1].opname in _BETWEEN:
        k -= 1
    for _ in range(call.arg or 0) if call.opname == "CALL" else ():
        end, height = k, 0
        while k > 0 and height < 1:
            k -= 1
            height += steps[k].effect
        arguments.insert(0, steps[k:end])
    if call.opname != "CALL" or any(s.target for s in (*steps[k:], call)):
        # Where one of two values is taken, or a loop is, instructions one after the other do not tell the height of the stack.
        owner, name = _placed(steps, call)
        return owner, name, True
    owner, name = [*arguments, [], []][:2]
    return owner, name, len(arguments) == 3


def _placed(steps: list[Step], call: Step) -> tuple[list[Step], list[Step]]:
    """The same first two by their places in the source, if they are variables or constants, or attributes of these."""
    if call.ends == call.begins:
        # Python was told to keep no columns (-X no_debug_ranges).
        return [], []
    begins = max((k for k, s in enumerate(steps, 1) if s.opname.startswith("LOAD_") and s.begins == call.begins),
                 default=len(steps))
    rest, found = [s for s in steps[begins:] if s.opname != "PUSH_NULL"], list[list[Step]]()
    while len(found) < 2 and rest and rest[0].opname in _VARIABLES | {"LOAD_CONST"}:
        k = next((k for k, s in enumerate(rest) if k and s.opname != "LOAD_ATTR"), len(rest))
        if any(call.begins < s.begins < rest[k - 1].ends for s in rest[k:] if s.offset != rest[k - 1].offset):
            # It is a part of something else.
            break
        found.append(rest[:k])
        rest = rest[k:]
    owner, name = [*found, [], []][:2]
    return owner, name
