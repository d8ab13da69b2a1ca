"""Privacy bookkeeping: noise, accounting, which defenses go together. Pure: no trainer, no federation."""
