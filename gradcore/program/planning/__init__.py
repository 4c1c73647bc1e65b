"""A plan: ``plan`` places buffers in one arena, by ``packing`` them.

``sharing`` finds results that overwrite operands, ``fusion`` instructions that run as one; ``drawing`` draws the plan.
"""
