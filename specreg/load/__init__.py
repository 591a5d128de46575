"""The client: requests, arrivals, rounds, and the processes that share them."""
