"""Questions: which documents somebody asks for, in which order, and what answers that quickly. Pure."""
