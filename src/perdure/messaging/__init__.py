"""Conversations with people on any platform: sessions, their messages, and the turns that answer them."""
