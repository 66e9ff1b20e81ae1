"""Audio in and out: references become waves, waves of successive pieces are joined, and become bytes of a format."""
