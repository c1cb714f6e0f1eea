"""What a release is checked by."""
