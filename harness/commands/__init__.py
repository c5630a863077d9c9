"""The subcommands of ``tefuzz``, a file each. Importing them imports no torch: help and errors come at once."""
