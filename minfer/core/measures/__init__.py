"""What is measured, each by one definition: latency, memory and its bandwidth, a card's load, a trace."""
