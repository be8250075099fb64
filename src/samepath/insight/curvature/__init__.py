"""The Hessian and the loss around a run's weights."""
