"""HiFi-GAN (Kong et al. 2020): mel frames in, audio out. Audio computed in windows equals that of a single call."""
