"""Episodes: the state machine behind every interface, its rules and its transcript."""
