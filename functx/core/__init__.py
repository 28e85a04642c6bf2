"""Programs: the IR, its types, and tracing; with the classes of `jax.core` that code tests for."""

from functx.core.missing_names import load_on_first_use, suggest_alternatives

__all__ = ["ShapedArray", "Tracer"]

suggest_alternatives("jax.core", __name__)
# JAX's class is the base of functx's: `isinstance` finds the values of traces of both.
names = {"ShapedArray": "functx.core.types", "Tracer": "jax.core"}
load_on_first_use(__name__, modules=[], names=names, others="jax.core")
del names
