"""What no attack can exceed (γ)."""
