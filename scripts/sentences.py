"""Sentences of a text, and which are too long: what check_comments.py and check_pages.py have in common."""
import re

WORDS_MAX = 35
# A sentence ends at its mark and what closes around it; it may begin after what `also` matches too.
END = r"(?<=[.!?])[\"')*_\]]*\s"


def long_sentences(text, also=None):
    """(where it begins in the text, what is wrong) of each sentence of more than WORDS_MAX words."""
    at = 0
    for end in [m for m in re.finditer(f"{END}|{also}" if also else END, text)] + [None]:
        words = text[at:end.start() if end else None].split()
        if sum(any(c.isalnum() for c in word) for word in words) > WORDS_MAX:
            blanks = len(text) - at - len(text[at:].lstrip())
            yield at + blanks, f"a sentence of more than {WORDS_MAX} words: {' '.join(words)}"
        at = end.end() if end else at
