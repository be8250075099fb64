"""From a plan and a recipe to a trained model: workers, grains, sums, steps, state."""
