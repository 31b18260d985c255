"""The one training loop, its objectives, batches, stopping, checkpoints and run folders."""
