"""Operations on messaging sessions and on the turns that answer their messages."""
