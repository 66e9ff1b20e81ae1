"""Times of words, from the attention of one head to the text.

`path` finds the time of each token, `times` finds the times of spoken words, `written` maps spoken words to the
request's text, and `words` combines them for one request.
"""
