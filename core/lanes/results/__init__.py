"""What was measured: the store that keeps it, and the document that tells it."""
