"""Number formats as pure functions on plain tensors: casts, scales, layouts. No TE object is known here."""
