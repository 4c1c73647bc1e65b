"""Attributes that code looks up, or sets, by names which it computes, so that its instructions do not tell them."""

from __future__ import annotations

import argparse
import dis
import functools
import inspect
import typing
from collections.abc import Container, Sequence
from types import CodeType, FrameType, MemberDescriptorType, ModuleType
from typing import Any, NamedTuple

from gradcore.engine.value import Value
from gradcore.program.guarding.bytecode import LOADS, LOADS_CONSTANT
from gradcore.program.guarding.frames import line_of, parameters
from gradcore.program.guarding.guards import Attribute, Guard, identical, weakly
from gradcore.program.guarding.libraries import is_of_library
from gradcore.program.guarding.names import Names, fields_of
from gradcore.program.guarding.values import asked, attributes_of, equal

#: Instructions that load a variable.
_VARIABLES = LOADS | {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"}
#: Instructions that only put texts together, so that the constants among them are parts of what they make.
_JOINS = _VARIABLES | LOADS_CONSTANT | {"LOAD_ATTR", "BUILD_STRING", "FORMAT_VALUE", "FORMAT_SIMPLE", "CONVERT_VALUE",
                                        "BINARY_OP"}
#: What else there is between the arguments of a call and the call.
_BETWEEN = frozenset(("PRECALL", "CACHE", "EXTENDED_ARG", "KW_NAMES"))

#: Code that uses one of these may look up what it is given by a name, as in reduce(getattr, path.split("."), x).
_TAKES_NAMES = frozenset(("__dict__", "vars", "getattr", "hasattr", "attrgetter"))
#: What compares or prints the attributes of a namespace, and what asks whether it has one.
_WHOLE = frozenset((argparse.Namespace.__eq__.__code__, argparse.Namespace.__repr__.__code__))
#: What asks whether an object has the attributes of a protocol, and what reads the defaults of a function for its signature.
_ASKS_FOR_ALL: CodeType = type(typing.SupportsInt).__instancecheck__.__code__
_READS_DEFAULTS: CodeType = inspect._signature_from_function.__code__  # type: ignore[attr-defined]
#: Python's own code whose calls are looked at.
LOOKING_UP = _WHOLE | {argparse.Namespace.__contains__.__code__, _ASKS_FOR_ALL, _READS_DEFAULTS}

_unknown = object()


class _Step(NamedTuple):
    """An instruction, or one of the two loads that one stands for: its name, what it names, and by how much the stack grows."""

    opname: str
    argval: Any
    effect: int
    #: Do jumps lead here?
    target: bool
    #: Is it no format with a specification, and no operator but ``+``?
    plain: bool


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
            if not _is_constant(name):
                self._looks_up(frame, owner, name, default or called is hasattr)
        elif called is setattr or called is delattr:
            if _value(frame, _operands(frame.f_code, frame.f_lasti)[0]) not in self._new:
                self._drawn.append(f"{line_of(frame)} calls {called.__name__}(), which a replay would not do")
        elif called is vars or called is dir:
            of = _value(frame, _operands(frame.f_code, frame.f_lasti)[0])
            if of is not _unknown:
                self._reads(of, [], True)

    def _looks_up(self, frame: FrameType, owner: list[_Step], name: list[_Step], optional: bool) -> None:
        text = _value(frame, name)
        # Where it is not known what the name is, a variable may hold it.
        texts = [x for x in (frame.f_locals.values() if not name else [text]) if isinstance(x, str)]
        if texts:
            self._asked.update(texts)
            return
        of = _value(frame, owner)
        if of is _unknown:
            self._drawn.append(f"{line_of(frame)} computes the name of an attribute: give the name a variable of its own")
        else:
            # Whatever has the parts of the name that are known.
            self._reads(of, [s.argval for s in name if s.opname in LOADS_CONSTANT] if all(
                s.opname in _JOINS and s.plain for s in name) else [], optional)

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


def _value(frame: FrameType, steps: list[_Step]) -> Any:
    """What steps load if they only load a variable, or an attribute of one."""
    if not steps or any(s.opname != "LOAD_ATTR" for s in steps[1:]):
        return _unknown
    first, *rest = steps
    if first.opname in LOADS_CONSTANT:
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
def _operands(code: CodeType, at: int) -> tuple[list[_Step], list[_Step], bool]:
    """What loads the first two arguments of the call that is the instruction at this offset, each as far as it is known, and
    whether there is a third."""
    *before, call = [i for i in dis.get_instructions(code) if i.offset <= at]
    jumps = call.is_jump_target
    while before and before[-1].opname in _BETWEEN:
        jumps = before.pop().is_jump_target or jumps
    steps = [s for i in before for s in _steps(i)]
    if call.opname != "CALL" or jumps:
        # The default may be one of two, as in getattr(x, "name", 1 if y else 2).
        begins = max((k for k, s in enumerate(steps) if s.argval in ("getattr", "hasattr")), default=0)
        rest = [s for s in steps[begins + 1:] if s.opname != "LOAD_ATTR"]
        constant = [s.opname in kinds for s, kinds in zip(rest, (_VARIABLES, LOADS_CONSTANT), strict=False)] == [True, True]
        return [], rest[1:2] if constant and not any(s.opname in ("BUILD_STRING", "BINARY_OP") for s in rest) else [], True
    arguments = []
    for _ in range(call.arg or 0):
        k, height = len(steps), 0
        while k > 0 and height < 1:
            k -= 1
            height += steps[k].effect
        # An argument to which jumps lead has several values.
        arguments.append([] if any(s.target for s in steps[k + 1:]) else steps[k:])
        steps = steps[:k]
    owner, name = [*arguments[::-1], [], []][:2]
    return owner, name, len(arguments) == 3


def _is_constant(name: list[_Step]) -> bool:
    return [s.opname in LOADS_CONSTANT for s in name] == [True]


def _steps(i: dis.Instruction) -> list[_Step]:
    if i.opname in LOADS and isinstance(i.argval, tuple):
        return [_Step("LOAD_FAST", v, 1, i.is_jump_target, True) for v in i.argval[i.opname == "STORE_FAST_LOAD_FAST":]]
    effect = dis.stack_effect(i.opcode, i.arg if i.opcode >= dis.HAVE_ARGUMENT else None, jump=False)
    plain = not (i.opname == "FORMAT_VALUE" and (i.arg or 0) & 4) and (i.opname != "BINARY_OP" or i.argrepr == "+")
    # Newer Pythons load a method by the instruction for an attribute.
    opname = "LOAD_METHOD" if i.opname == "LOAD_ATTR" and effect else i.opname
    return [_Step(opname, i.argval, effect, i.is_jump_target, plain)]
