"""Reports that a stranger can act on: a standalone program, a text for an upstream issue and a page with pictures.

Everything is made from a case and from what ``run_case`` observed; nothing here runs a case. ``program`` imports torch
through the harness, so this package is imported after ``harness.device.activate()`` (but for ``index``).
"""
