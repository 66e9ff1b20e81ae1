"""SpeechT5 (Ao et al. 2022): computes a mel from characters and a speaker vector, and HiFi-GAN audio from the mel."""
