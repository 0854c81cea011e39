// Nothing: the executable that this belongs to owns the precompiled header of all tests.
