"""GANs whose discriminator is trained by DP-SGD."""
