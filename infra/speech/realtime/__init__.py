"""One endpoint with one model: how it is made, how it grows, how it is rolled out."""
