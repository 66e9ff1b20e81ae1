"""Generate the texts for the teacher: a practically endless, deterministic stream of English utterances.

``utterances`` mixes sentences of books and dictionaries, templates, numbers and dates, word salads and short calls.
``held_out_sentences`` are for evaluation and never part of the stream. This package is independent of audio.

Sources, read by ``prepare`` from the files of Debian packages (nothing of them is in the repository or the package):
wordnet-base (glosses and quoted examples; WordNet 3.0 licence, free use with its notice), bible-kjv-text (public
domain), fortunes and fortunes-min (BSD; quotations of their authors), wamerican (word list; SCOWL, free use with its
notice). ``wordlists.txt`` and ``held_out.txt`` were written for this project.
"""

from recipes.voice.texts.stream import Corpora, Mix, held_out_sentences, is_held_out, load, utterances

__all__ = ["Corpora", "Mix", "held_out_sentences", "is_held_out", "load", "utterances"]
