"""A reader's test: which cubes are real?"""
