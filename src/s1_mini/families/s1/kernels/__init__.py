"""What only S1 does in one kernel: a column of tokens embedded and taken back, its tokens drawn and penalised."""
