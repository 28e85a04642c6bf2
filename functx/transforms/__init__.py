"""Transforms of programs: one file for each, named by its verb."""
