"""What leaves a run: predictions, exported models, and the card that says where they are from."""
