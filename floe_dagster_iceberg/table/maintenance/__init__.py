"""Operations that rewrite, expire or delete files. None of them changes a row."""
