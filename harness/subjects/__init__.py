"""One file per way to run a case. ``pair_for`` says which subject is under test and which one it is compared with."""
