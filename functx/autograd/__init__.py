"""PyTorch's imperative autograd: arrays that remember, `backward`, hooks and modes, on functx's programs."""

from functx.autograd.backward import backward as backward
from functx.autograd.backward import grad as grad
from functx.autograd.modes import enable_grad as enable_grad
from functx.autograd.modes import inference_mode as inference_mode
from functx.autograd.modes import is_grad_enabled as is_grad_enabled
from functx.autograd.modes import is_inference_mode_enabled as is_inference_mode_enabled
from functx.autograd.modes import no_grad as no_grad
from functx.autograd.modes import set_grad_enabled as set_grad_enabled
from functx.autograd.recording import recorded as recorded
from functx.autograd.variable import Variable as Variable

__all__ = [
    "Variable",
    "backward",
    "enable_grad",
    "grad",
    "inference_mode",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "no_grad",
    "recorded",
    "set_grad_enabled",
]
