"""Programs: the IR, its types, and tracing."""
