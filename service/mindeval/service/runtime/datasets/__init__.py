"""Datasets: files to documents, with a name for every sample that an error can point at."""
