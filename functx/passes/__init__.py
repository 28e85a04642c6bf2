"""What to keep between a forward and a backward computation, and what to compute again."""
