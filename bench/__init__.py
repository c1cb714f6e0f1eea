"""`make bench`: CPU time of the gateway beside a plain reverse proxy (see docs/benchmarks.md)."""
