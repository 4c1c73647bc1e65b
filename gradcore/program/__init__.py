"""Graph mode: trace a run once, plan its memory, replay it."""

from gradcore.program.compiled import Compiled, compile
from gradcore.program.loaded import LoadedProgram, load_program
from gradcore.program.plan import Plan, plan
from gradcore.program.program import Buffer, Instruction, Number, Operand, Program, Update

__all__ = ["Buffer", "Compiled", "Instruction", "LoadedProgram", "Number", "Operand", "Plan", "Program", "Update", "compile",
           "load_program", "plan"]
