"""What a program is and how one is made."""
