"""Functions with rules of their own: derivatives by the user, recomputation."""
