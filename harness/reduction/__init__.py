"""Making a saved case smaller while it stays in its bucket. Nothing here imports torch but the worker processes."""
