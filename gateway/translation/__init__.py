"""Between a dialect and a backend, without I/O: lanes, refusals of what a model cannot do, totals, whole replies."""
