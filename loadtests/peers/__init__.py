"""The same translation work on this system and on others: same weights, same token ids, same search, same machine."""
