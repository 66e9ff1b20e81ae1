"""Times of words, from the attention of one head to the text.

`path` finds the time of each token, `times` those of spoken words, `written` maps them to the request's text, and
`words` does all of it for one request.
"""
