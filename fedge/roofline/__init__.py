"""Time and energy rooflines of power modes, fitted to micro-benchmarks or to tables, and the mode they choose."""
