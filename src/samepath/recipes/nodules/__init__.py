"""DeepDensity: the recipe, generation, judgement, pictures."""
