"""The model: one diffusion step as a layer, DIFFormer, and prediction from a frozen context."""
