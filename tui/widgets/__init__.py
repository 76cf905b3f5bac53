"""The parts of the screen. They take plain values and know no engine."""
