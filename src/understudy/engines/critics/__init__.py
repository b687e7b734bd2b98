"""Many critics side by side: the bank of tensors, stacked layers, warm start, and the panel with its data."""
