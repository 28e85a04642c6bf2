"""PyTorch's imperative autograd: arrays that remember, `backward`, hooks and modes, on functx's programs."""

from functx.autograd import forward_ad as forward_ad
from functx.autograd import functional as functional
from functx.autograd import jitted_steps as _jitted_steps  # noqa: F401 - defines steps under `jit`
from functx.autograd import methods as _methods  # noqa: F401 - defines the operators of Variables
from functx.autograd.anomaly import detect_anomaly as detect_anomaly
from functx.autograd.anomaly import is_anomaly_check_nan_enabled as is_anomaly_check_nan_enabled
from functx.autograd.anomaly import is_anomaly_enabled as is_anomaly_enabled
from functx.autograd.anomaly import set_detect_anomaly as set_detect_anomaly
from functx.autograd.backward import backward as backward
from functx.autograd.backward import grad as grad
from functx.autograd.checkpoint import checkpoint as checkpoint
from functx.autograd.engine import is_checkpoint_valid as _is_checkpoint_valid  # noqa: F401
from functx.autograd.engine import queue_callback as queue_callback
from functx.autograd.function import Function as Function
from functx.autograd.function import once_differentiable as once_differentiable
from functx.autograd.gradcheck import gradcheck as gradcheck
from functx.autograd.gradcheck import gradgradcheck as gradgradcheck
from functx.autograd.graph import get_gradient_edge as get_gradient_edge
from functx.autograd.graph import register_multi_grad_hook as register_multi_grad_hook
from functx.autograd.modes import enable_grad as enable_grad
from functx.autograd.modes import force_original_view_tracking as force_original_view_tracking
from functx.autograd.modes import inference_mode as inference_mode
from functx.autograd.modes import is_grad_enabled as is_grad_enabled
from functx.autograd.modes import is_inference_mode_enabled as is_inference_mode_enabled
from functx.autograd.modes import is_multithreading_enabled as is_multithreading_enabled
from functx.autograd.modes import is_view_replay_enabled as is_view_replay_enabled
from functx.autograd.modes import no_grad as no_grad
from functx.autograd.modes import set_grad_enabled as set_grad_enabled
from functx.autograd.modes import set_multithreading_enabled as set_multithreading_enabled
from functx.autograd.nested_function import NestedIOFunction as NestedIOFunction
from functx.autograd.nodes import GradientEdge as GradientEdge
from functx.autograd.recording import recorded as recorded
from functx.autograd.saved import allow_mutation_on_saved_tensors as allow_mutation_on_saved_tensors
from functx.autograd.saved import disable_saved_tensors_hooks as disable_saved_tensors_hooks
from functx.autograd.saved import increment_version as increment_version
from functx.autograd.saved import save_on_cpu as save_on_cpu
from functx.autograd.saved import saved_tensors_hooks as saved_tensors_hooks
from functx.autograd.saved import unsafe_preserve_version_counter as unsafe_preserve_version_counter
from functx.autograd.variable import Variable as Variable
from functx.autograd.variable import variable as variable
from functx.core.argument_errors import explain_errors as _explain_errors

__all__ = [*_explain_errors(__name__), "forward_ad", "functional"]
for _module in (functional.__name__, forward_ad.__name__):
    _explain_errors(_module)
