"""What happens to a page. Knows no Ray, no torch and no MinerU."""
