"""A release, rehearsed: all that is published is built into dist/ and tried, and nothing leaves this machine."""
