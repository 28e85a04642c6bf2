"""Errors for PyTorch's names of methods, functions and arguments, with the names in functx."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import unwrap

from functx.core.errors import ArgumentError

METHODS = {
    "detach_": "x = x.detach()",
    "data": "x.detach()",
    "clone": "x.copy()",
    "contiguous": "x, or x.copy() for memory of its own",
    "size": "x.shape",
    "numel": "x.size",
    "dim": "x.ndim",
    "t": "x.T",
    "permute": "x.transpose(axes)",
    "unsqueeze": "functx.numpy.expand_dims(x, axis)",
    "expand": "functx.numpy.broadcast_to(x, shape)",
    "chunk": "functx.numpy.split(x, chunks, axis)",
    "split": "functx.numpy.split(x, positions of the cuts, axis)",
    "select": "functx.numpy.take(x, index, axis)",
    "gather": "functx.numpy.take_along_axis(x, indices, axis)",
    "scatter": "functx.numpy.put_along_axis(x, indices, values, axis) on a copy",
    "scatter_add": "x.at[indices].add(values)",
    "to": "x.astype(dtype)",
    "type": "x.astype(dtype)",
    "bool": "x.astype(bool)",
    "int": "x.astype('int32')",
    "long": "x.astype(int)",
    "half": "x.astype('float16')",
    "bfloat16": "x.astype('bfloat16')",
    "float": "x.astype('float32')",
    "double": "x.astype('float64') inside jax.enable_x64()",
    "cdouble": "x.astype('complex128') inside jax.enable_x64()",
    "cpu": "numpy.asarray(x)",
    "cuda": "jax.device_put(value, device) where the array is made",
    "clamp": "x.clip(min, max)",
    "pow": "x ** n",
    "matmul": "x @ y",
    "mm": "x @ y",
    "bmm": "x @ y",
    "norm": "functx.numpy.linalg.norm(x, ord, axis)",
    "cross": "functx.numpy.cross(x, y, axis=axis)",
    "where": "functx.numpy.where(condition, x, y)",
    "masked_fill": "functx.numpy.where(mask, value, x)",
    "nan_to_num": "functx.numpy.nan_to_num(x, nan=value)",
    "polygamma": "functx.lax.polygamma(n, x)",
    "topk": "functx.lax.top_k(x, k)",
    "cummax": "functx.lax.cummax(x, axis), which returns the values",
    "cummin": "functx.lax.cummin(x, axis), which returns the values",
    "zero_": "x[...] = 0",
    "fill_": "x[...] = value",
    "copy_": "x[...] = y",
    "add_": "x += y",
    "mul_": "x *= y",
    "bernoulli_": "functx.random.bernoulli_(x, p)",
    "cauchy_": "functx.random.cauchy_(x)",
    "exponential_": "functx.random.exponential_(x)",
    "geometric_": "functx.random.geometric_(x, p)",
    "log_normal_": "functx.random.log_normal_(x)",
    "normal_": "functx.random.normal_(x)",
    "random_": "functx.random.random_(x)",
    "uniform_": "functx.random.uniform_(x)",
}
"""The expression for each method that functx lacks, or has as a function with other arguments."""

MODULE_METHODS = {
    "apply": "write for module in m.modules(): f(module)",
    "to": "give the dtype and the device where the parameters are made",
    "cuda": "make the parameters on the device, with jax.device_put(value, device)",
    "float": "make the parameters with dtype='float32'",
    "double": "make the parameters with dtype='float64', inside jax.enable_x64()",
    "half": "make the parameters with dtype='float16'",
    "bfloat16": "make the parameters with dtype='bfloat16'",
}
"""The alternative for each method of PyTorch's modules that functx lacks."""

FUNCTIONS = {
    "functx": {
        "tensor": "write functx.numpy.array(x), or functx.autograd.Variable(x)",
        "Tensor": "write functx.numpy.ndarray, or functx.autograd.Variable",
        "array": "write functx.numpy.array(x)",
        "from_numpy": "write functx.numpy.asarray(x), or functx.autograd.Variable(x)",
        "no_grad": "write functx.autograd.no_grad, or functx.lax.stop_gradient(x)",
        "compile": "write functx.jit(f)",
        "func": "its transforms are functx.grad, functx.vmap and the others",
        "manual_seed": "write functx.random.key(seed), or functx.random.generator.manual_seed(seed)",
        "optim": "write the step, params = tree.map(lambda p, g: p - rate * g, params, grads), or use optax",
    },
    "functx.numpy": {
        "cat": "write functx.numpy.concatenate(arrays, axis)",
        "chunk": "write functx.numpy.split(x, chunks, axis)",
        "clamp": "write functx.numpy.clip(x, min, max)",
        "topk": "write functx.lax.top_k(x, k)",
        "mm": "write x @ y",
        "bmm": "write x @ y",
        "norm": "write functx.numpy.linalg.norm(x, ord, axis)",
        "tensor": "write functx.numpy.array(x), or functx.autograd.Variable(x)",
        "from_numpy": "write functx.numpy.asarray(x), or functx.autograd.Variable(x)",
        "unsqueeze": "write functx.numpy.expand_dims(x, axis)",
        "gather": "write functx.numpy.take_along_axis(x, indices, axis)",
        "random": "write functx.random.normal(key, shape) and the like, with functx.random.key(seed)",
        "rand": "write functx.random.uniform(key, shape)",
        "randn": "write functx.random.normal(key, shape)",
    },
    "functx.random": {
        "dropout": "write functx.nn.dropout(x, rate, key), or functx.random.generator.dropout(x, p)",
    },
    "functx.nn": {
        "init": "write functx.random.normal_(w), or values of jax.nn.initializers",
        "functional": "its functions are those of functx.nn",
        "Linear": "write a functx.nn.Module whose forward returns x @ self.weight.T + self.bias",
        "linear": "write x @ weight.T + bias",
        "conv2d": "write functx.lax.conv_general_dilated(x, weight, strides, padding)",
        "GELU": "write functx.nn.gelu(x, approximate=False)",
        "BCELoss": "write functx.nn.binary_cross_entropy",
        "BCEWithLogitsLoss": "write functx.nn.binary_cross_entropy_with_logits",
        "BatchNorm1d": "write functx.nn.batch_norm",
        "BatchNorm2d": "write functx.nn.batch_norm",
        "MaxPool2d": "write functx.nn.max_pool, whose channels are last",
        "max_pool2d": "write functx.nn.max_pool, whose channels are last",
        "avg_pool2d": "write functx.nn.avg_pool, whose channels are last",
        "AvgPool2d": "write functx.nn.avg_pool, whose channels are last",
        "Conv2d": "write functx.lax.conv_general_dilated(x, weight, strides, padding)",
    },
}
"""The alternative for each function of PyTorch, by the module where it is looked for."""

_ARGUMENTS = {
    "data": {"value": "value=data"},
    "dim": {"axis": "axis=dim"},
    "dims": {"axis": "axis=dims"},
    "keepdim": {"keepdims": "keepdims=keepdim"},
    "p": {"rate": "rate=p", "ord": "ord=p"},
    "training": {"deterministic": "deterministic=not training"},
    "unbiased": {"correction": "correction=1 for unbiased=True, the default of PyTorch"},
}
"""The spelling in functx of an argument of PyTorch, by the parameter that a function has for it."""


def check_argument_names(
    function: Callable[..., object], function_name: str, names: Iterable[str]
) -> None:
    """Raise ArgumentError if one of `names` is PyTorch's for a parameter of `function`."""
    code = unwrap(function).__code__
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    for name in names:
        for parameter, cure in _ARGUMENTS.get(name, {}).items():
            if name not in parameters and parameter in parameters:
                raise ArgumentError(
                    f"{function_name}: the argument must be named {parameter}; got {name}",
                    fix=f"Write {cure}.",
                ) from None
