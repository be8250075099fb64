"""Links, costs, one stopwatch, and one model of a step."""
