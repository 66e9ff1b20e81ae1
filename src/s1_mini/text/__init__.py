"""Text in: `normalize` puts a request's text in order, `split` cuts it into pieces that one generation can speak."""
