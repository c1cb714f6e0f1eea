"""`make bench-peers`: the gateway and its peers side by side, in turns, against one canned backend."""
