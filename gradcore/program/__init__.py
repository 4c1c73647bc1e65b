"""Graph mode: trace a run once, plan its memory, replay it."""

from gradcore.program.again import record
from gradcore.program.compiled import Compiled
from gradcore.program.compiling import compile
from gradcore.program.explicit import Graph, Symbol, gradients, trace
from gradcore.program.loaded import LoadedProgram, load_program
from gradcore.program.plan import Plan, plan
from gradcore.program.program import Buffer, Instruction, Number, Operand, Program, Update

__all__ = ["Buffer", "Compiled", "Graph", "Instruction", "LoadedProgram", "Number", "Operand", "Plan", "Program", "Symbol",
           "Update", "compile", "gradients", "load_program", "plan", "record", "trace"]
