"""Functions of matrices that are made of eigenvalues and eigenvectors, as one operation each."""
