"""What s1_mini looks like on AWS: one folder per concern, composed by `app.py` and `components_app.py`."""
