"""gradcore: autograd with exact device-memory accounting."""

import numpy as _np

from gradcore.devices import host as _host, meta as _meta  # noqa: F401 - they register their devices
from gradcore.devices.device import get_device as device
from gradcore._tensor import Size, Tensor
from gradcore.functional import tensor, ones, zeros
from gradcore import autograd
from gradcore.autograd import no_grad
from gradcore._step import step
