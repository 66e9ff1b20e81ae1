"""SpeechT5 (Ao et al. 2022): characters and a speaker vector to a mel, step by step, followed by HiFi-GAN."""
