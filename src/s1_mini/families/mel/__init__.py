"""SpeechT5 (Ao et al. 2022) turns characters and a speaker vector into a mel, which HiFi-GAN turns into audio."""
