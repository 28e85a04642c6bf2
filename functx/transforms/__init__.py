"""What can be done to a program: one file a transform."""
