"""How updates reach the server: plain, Paillier-encrypted, masked (secure aggregation), and what each costs."""
