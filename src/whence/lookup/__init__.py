"""Questions: from what a person asks to an answer that proves itself."""
