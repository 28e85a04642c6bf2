"""PyTorch's imperative autograd on functx's programs: Variables, `backward`, `grad`, modes, hooks."""

from functx.autograd.backward import backward as backward
from functx.autograd.backward import grad as grad
from functx.autograd.modes import is_grad_enabled as is_grad_enabled
from functx.autograd.modes import no_grad as no_grad
from functx.autograd.variable import Variable as Variable
