"""Building blocks of the models, such as attention and norms. They know nothing about families, requests and files."""
