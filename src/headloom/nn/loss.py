"""Training losses, as sums over target tokens."""
IGNORE = -100  # target value that takes no part in the loss (PyTorch's default)
