"""DP-SGD: per-unit gradients, one private step, its optimiser, Poisson batches and CUDA graph."""
