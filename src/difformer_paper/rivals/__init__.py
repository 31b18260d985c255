"""The models that the paper compares DIFFormer with, each in the form its authors released."""
