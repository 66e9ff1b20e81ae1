"""SpeechT5 (Ao et al. 2022): characters and a speaker's vector to a mel, frame by frame, and HiFi-GAN behind it."""
