"""Systems: named ways to go from data to a trained model, ours and the common ones."""
