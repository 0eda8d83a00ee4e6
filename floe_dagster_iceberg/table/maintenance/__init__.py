"""Operations that rewrite, expire or delete files and change no row."""
