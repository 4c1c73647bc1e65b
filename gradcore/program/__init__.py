"""Graph mode: trace a run once, plan its memory, replay it. The files, in the order in which a function travels:

- **A call.** ``compiling`` and ``compiled`` are the cache of programs; an ``entry`` is one of them. ``keys`` and ``unread`` say
  what a call is keyed by, ``attempts`` when tracing is given up; ``check`` is ``check_every``.
- **A trace.** ``tracing`` is all that is open while the function runs: a ``recorder`` with its ``trace_log`` for the launches,
  and ``watch``. ``building`` makes a ``program`` of the log, ``differentiable`` the gradient of its results. ``templates``,
  ``carried`` and ``escapes`` are about what the function returns, puts into variables, and leaves behind.
- **What the function read and changed.** ``watch`` sees every call; ``called``, ``gradient_reads``, ``assignments``,
  ``harmless``, ``outside`` and ``newness`` note what each does. From the code that ran, ``reach`` finds the objects that it
  names, and makes ``guards`` and ``library_guards``. ``bytecode``, ``names``, ``frames``, ``libraries`` and ``values`` answer
  single questions about code and objects.
- **A plan.** ``plan`` places buffers in one arena; ``sharing`` finds results that overwrite operands, ``fusion`` instructions
  that run as one; ``drawing`` draws it.
- **A replay.** ``binding`` binds the calls to an ``arena``, with ``stand_ins`` for what each run brings. ``replay`` runs them,
  with the ``counts`` of optimizers; ``narration`` writes the log. ``capture`` makes CUDA graphs of them, over ``fixed``
  addresses.
- **Beside it.** ``shipping``, ``encoding``, ``files``, ``verify`` and ``loaded`` are about programs in files; ``explicit``,
  ``chain`` and ``followed`` about graphs that are executed by hand; ``again`` is ``record`` and ``forward()``.
"""

from gradcore.program.again import record
from gradcore.program.compiled import Compiled
from gradcore.program.compiling import compile
from gradcore.program.explicit import Graph, Symbol, gradients, trace
from gradcore.program.loaded import LoadedProgram, load_program
from gradcore.program.plan import Plan, plan
from gradcore.program.program import Buffer, Instruction, Number, Operand, Program, Update

__all__ = ["Buffer", "Compiled", "Graph", "Instruction", "LoadedProgram", "Number", "Operand", "Plan", "Program", "Symbol",
           "Update", "compile", "gradients", "load_program", "plan", "record", "trace"]
