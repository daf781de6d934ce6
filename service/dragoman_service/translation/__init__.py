"""One request or one document, from text to text: checked, split, decoded, joined."""
