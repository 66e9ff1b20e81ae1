"""Who speaks: references on their way to becoming codes. Receives a codec, imports none."""
