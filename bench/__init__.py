"""CPU time of the gateway beside a plain reverse proxy: `make bench` (see docs/benchmarks.md)."""
