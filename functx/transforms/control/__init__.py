"""Structured control flow: branches and loops whose bodies are programs in an equation."""
