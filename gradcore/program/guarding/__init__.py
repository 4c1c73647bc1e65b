"""What must be as it was for a replay: from the code that ran, ``reach`` finds the objects that it names.

``guards``, ``gradients``, ``modules``, ``optimizers``, ``entries`` and ``absent`` ask whether these are the same, by
``readers``. ``bytecode``, ``names``, ``options``, ``frames``, ``libraries`` and ``values`` answer single questions about code
and objects.
"""
