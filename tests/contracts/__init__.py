"""The contracts, each file for itself: meaning, gradients, tolerances that hold and that bite, what is refused."""
