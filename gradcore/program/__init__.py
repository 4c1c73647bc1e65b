"""Graph mode: trace a run once, plan its memory, replay it. The packages, in the order in which a function travels:

- ``calls``: the cache of programs, and what a call is keyed by;
- ``tracing``: a run with all that notes it, and the ``program`` that is made of its log;
- ``watching``: what the function reads and changes outside itself;
- ``guarding``: what must be as it was for a replay;
- ``planning``: where buffers lie in one arena;
- ``replaying``: the calls of a program, bound to an arena, and CUDA graphs of them;
- ``shipping``: programs in files;
- ``graphs``: graphs that are traced, chained and executed by hand.
"""

from gradcore.program.calls.compiled import Compiled
from gradcore.program.calls.compiling import compile
from gradcore.program.graphs.again import record
from gradcore.program.graphs.explicit import Graph, Symbol, gradients, trace
from gradcore.program.planning.plan import Plan, plan
from gradcore.program.program import Buffer, Instruction, Number, Operand, Program, Update
from gradcore.program.shipping.loaded import LoadedProgram, load_program

__all__ = ["Buffer", "Compiled", "Graph", "Instruction", "LoadedProgram", "Number", "Operand", "Plan", "Program", "Symbol",
           "Update", "compile", "gradients", "load_program", "plan", "record", "trace"]
