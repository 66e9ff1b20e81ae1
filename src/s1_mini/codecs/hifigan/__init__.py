"""HiFi-GAN (Kong et al. 2020): frames of a mel in, audio out, in windows that give the samples of one call."""
