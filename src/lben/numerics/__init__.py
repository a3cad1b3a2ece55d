"""Mathematics that knows nothing of networks: norms, enclosed matrices, searches over metrics, Riccati equations."""
