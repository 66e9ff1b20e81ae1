"""Who speaks: recordings and files on their way to becoming voices. What a voice is made of, a family says."""
