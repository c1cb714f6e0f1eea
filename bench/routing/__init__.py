"""Conversations on eight simulated workers: what each pick policy makes of their prefix caches."""
