"""Tools around programs and the package itself."""
