"""Episodes: the state machine that every interface drives, its rules and its record."""
