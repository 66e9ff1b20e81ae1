"""HiFi-GAN (Kong et al. 2020): mel frames in, audio out; windows give the samples of one call."""
