"""Devices: memory, streams, and a table of kernels each; ``device`` says what all have, ``naming`` finds one by its name.

``host`` is the CPU, ``gpu`` a GPU, ``meta`` the device without values. ``pinned`` is host memory that a GPU copies from,
``availability`` says whether there is a GPU, and ``storage`` is the memory of a tensor and its views.

``calls`` are what a device is told of kernels to be run; ``kernels`` is what kernels of all devices share, ``attention`` what
those of attention do, ``adapting`` converts operands for dtypes that NumPy handles differently, ``precision`` is that of matrix
products, and in ``turns`` runs of several streams use memory that they share.
"""
