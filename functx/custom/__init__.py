"""Functions with user-defined rules: derivatives, batching, checkpoints, solvers and operators."""
